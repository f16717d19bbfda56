package checkpoint

import (
	"errors"
	"strings"

	"joiner/internal/wire"
)

// verdictOf tells a format of the future from damage.
func verdictOf(err error) Verdict {
	var version wire.VersionError
	if errors.As(err, &version) || strings.Contains(err.Error(), "format major version") {
		return TooNew // the second is the store's own way of saying so
	}
	return Damaged
}
