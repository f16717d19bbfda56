package remote

import (
	"fmt"
	"net/netip"
	"strings"
)

// names says which hosts may be dialled. The zero value allows all.
//
// A name allows that very name, and says nothing about the addresses that it
// resolves to; an address allows that address, however it is written; a prefix
// (10.0.0.0/8) allows the addresses in it; *.pods.example allows every name
// below pods.example.
type names struct {
	some     bool
	exact    map[string]bool
	below    []string // each begins with a dot
	prefixes []netip.Prefix
}

// Allows returns what decides whether a host may be dialled under these entries
// of peer.allowed_names; none allow all. Its error is about an entry that is
// neither a name, nor an address, nor a range, nor a star before a name's first
// dot; the configuration takes no such entry.
func Allows(entries []string) (func(host string) bool, error) {
	n, err := newNames(entries)
	if err != nil {
		return nil, err
	}
	return n.has, nil
}

func newNames(entries []string) (names, error) {
	n := names{some: len(entries) > 0, exact: make(map[string]bool)}
	for _, entry := range entries {
		if err := n.add(entry); err != nil {
			return names{}, err
		}
	}
	return n, nil
}

func (n *names) add(entry string) error {
	switch {
	case strings.Contains(entry, "/"):
		prefix, err := netip.ParsePrefix(entry)
		if err != nil {
			return fmt.Errorf("%q is no range of addresses: %w", entry, err)
		}
		n.prefixes = append(n.prefixes, unmapped(prefix).Masked())
	case strings.HasPrefix(entry, "*."):
		if len(entry) < len("*.x") || strings.Contains(entry[1:], "*") {
			return fmt.Errorf("%q is no pattern: a star stands for what is before the first dot", entry)
		}
		n.below = append(n.below, canonicalName(entry[1:]))
	default:
		if addr, err := netip.ParseAddr(strings.Trim(entry, "[]")); err == nil {
			addr = addr.Unmap()
			n.prefixes = append(n.prefixes, netip.PrefixFrom(addr.WithZone(""), addr.BitLen()))
			return nil
		}
		if entry == "" || strings.ContainsAny(entry, ":*@ ") {
			return fmt.Errorf("%q is neither a host nor an address: leave the port out", entry)
		}
		n.exact[canonicalName(entry)] = true
	}
	return nil
}

// unmapped is a range of IPv4 addresses that are written as IPv6 ones
// (::ffff:10.0.0.0/104) as what it means; others stay as they are.
func unmapped(p netip.Prefix) netip.Prefix {
	const mapped = 96 // bits before the IPv4 address
	if !p.Addr().Is4In6() || p.Bits() < mapped {
		return p
	}
	return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mapped)
}

// has reports whether the host may be dialled.
func (n *names) has(host string) bool {
	if !n.some {
		return true
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		addr = addr.Unmap().WithZone("")
		for _, p := range n.prefixes {
			if p.Contains(addr) {
				return true
			}
		}
		return false
	}
	host = canonicalName(host)
	if n.exact[host] {
		return true
	}
	for _, suffix := range n.below {
		if len(host) > len(suffix) && strings.HasSuffix(host, suffix) {
			return true
		}
	}
	return false
}

// canonicalName: host names have no case, and a dot at the end means the same.
func canonicalName(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) }
