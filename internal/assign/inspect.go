package assign

import (
	"errors"

	"joiner/internal/wire"
)

// Inspection is what a member's user data tells somebody who looks at the group
// from outside.
type Inspection struct {
	// Joiner is set where a joiner wrote it, of whatever release.
	Joiner bool
	// Format is the major version of the format, to be held against
	// wire.FormatVersion; 0 where no joiner wrote it.
	Format int
	// Identity is zero where the data could not be read.
	Identity Identity
	// Err says why a joiner's data could not be read.
	Err error
}

// Inspect reads the user data of a member's subscription. While the group
// changes from sticky to another strategy, a joiner's data looks like that of
// any other consumer.
func Inspect(userData []byte) Inspection {
	u, err := decodeUserData(userData)
	switch {
	case errors.Is(err, wire.ErrForeign):
		return Inspection{}
	case err != nil:
		return Inspection{Joiner: true, Format: int(userData[0]), Err: err}
	}
	return Inspection{Joiner: true, Format: int(userData[0]), Identity: u.Identity}
}

// InspectAssignment reads the directory that came with a member's assignment.
// It returns false where no joiner of this format led the group.
func InspectAssignment(userData []byte) (Directory, bool) {
	got, err := decodeDirectory(userData)
	return got.directory, err == nil
}
