package remote

// Allows returns what decides whether a host may be dialled under these entries
// of peer.allowed_names; none allow all. Its error is about an entry, as
// CheckName's.
func Allows(entries []string) (func(host string) bool, error) {
	n, err := newNames(entries)
	if err != nil {
		return nil, err
	}
	return n.has, nil
}
