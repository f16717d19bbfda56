package app

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"joiner/internal/config"
	"joiner/internal/remote"
)

// TestAllowedNamesAgree: an entry of peer.allowed_names that the dialler would
// refuse is one that the configuration refuses, which names its line and says
// what would be right.
func TestAllowedNamesAgree(t *testing.T) {
	agree := func(fail func(string, ...any), entry string) (taken bool) {
		c := config.Default()
		c.Peer.AllowedNames = []string{entry}
		if c.Validate() != nil {
			return false
		}
		if _, err := remote.Allows(c.Peer.AllowedNames); err != nil {
			fail("the configuration takes %q: %v", entry, err)
		}
		return true
	}
	for entry, want := range map[string]bool{
		"pod": true, "pod.example.": true, "*.pods.example": true, "10.0.0.1": true, "10.0.0.0/8": true, "::1": true,
		"fd00::/8": true, "fe80::1%eth0": true, "::ffff:10.0.0.1": true,
		"": false, "*": false, "*.": false, "pod:8081": false, "10.0.0.1:8081": false, "[::1]:8081": false, "a*b": false,
		"**.pods": false, "*.*.pods": false, "10.0.0.0/33": false, "fe80::1%": false, "10.0.0.1%eth0": false, "user@pod": false, "a b": false,
	} {
		if got := agree(t.Errorf, entry); got != want {
			t.Errorf("the configuration takes %q: %v", entry, got)
		}
	}
	piece := rapid.SampledFrom([]string{"*", ".", "*.", ":", "::", "%", "/", "/8", "1", "10.0.0.1", "fe80::1", "pod", "Pod.", "@", " ", "[", "]", "-", "\t", "é"})
	t.Run("random", rapid.MakeCheck(func(r *rapid.T) {
		agree(r.Errorf, strings.Join(rapid.SliceOfN(piece, 0, 4).Draw(r, "pieces"), ""))
	}))
}
