package app

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"joiner/internal/config"
)

// A key that is not the certificate's leaves the pair of before in force and the pod
// ready, and is noted with both files' names until it is right.
func TestFilesOfCertificatesAreNoted(t *testing.T) {
	files, others := newPeerFiles(t), newPeerFiles(t)
	s := newStage(t, allTopics()...)
	p := s.start(func(c *config.Config) {
		c.Peer.TLS = config.PeerTLS{Enabled: true, CAFile: files.ca, CertFile: files.cert, KeyFile: files.key}
	})
	p.awaitReady()
	if notes := p.Ready().Notes; len(notes) != 0 {
		t.Errorf("%q", notes)
	}
	replace := func(file, by string) {
		t.Helper()
		text, err := os.ReadFile(by)
		if err == nil {
			err = os.WriteFile(file, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		_, _ = p.peering.notAfter() // as a scrape does, or the next connection
	}
	key := files.key + ".good"
	if err := os.Link(files.key, key); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(files.key); err != nil {
		t.Fatal(err)
	}
	replace(files.key, others.key)
	r := p.Ready()
	for _, want := range []string{"peer.tls.cert_file: " + files.cert, "peer.tls.key_file: " + files.key, "does not match", "going on with what was there before"} {
		if len(r.Notes) != 1 || !strings.Contains(r.Notes[0], want) || !r.Ready {
			t.Errorf("%+v, want %q", r, want)
		}
	}
	replace(files.key, key)
	await(t, func() string {
		if notes := p.Ready().Notes; len(notes) != 0 {
			return fmt.Sprintf("%q", notes)
		}
		return ""
	})
}
