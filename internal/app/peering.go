package app

import (
	"context"
	"crypto/tls"
	"time"

	"go.uber.org/zap"

	"joiner/internal/config"
	"joiner/internal/remote"
	"joiner/internal/sampled"
	"joiner/internal/tlsfiles"
)

// peerAccess is how pods recognise each other: peer.tls and peer.token.
type peerAccess struct {
	files *tlsfiles.Source // nil: nothing is encrypted
	token *remote.Tokens   // nil: none
	auth  bool             // a pod that asks must show a certificate
}

// newPeerAccess reads the files once, so that one that cannot be used is found
// at the start. Errors name the key.
func newPeerAccess(p config.Peer, faults *sampled.Log) (a peerAccess, err error) {
	a.auth = p.TLS.ClientAuth
	if p.Token != "" || p.TokenFile != "" {
		a.token = remote.NewTokens(func() (string, error) {
			secret, err := p.ReadToken()
			return string(secret), err
		})
	}
	a.files, err = PeerTLS(p, func(err error) {
		faults.Warn("peer.tls", "a file of peer.tls cannot be used as it is now", zap.Error(err))
	})
	return a, err
}

// PeerTLS makes what reads the files of peer.tls; nil where it is not enabled.
// report hears of faults found later, as tlsfiles.Files has it. Errors name the
// key.
func PeerTLS(p config.Peer, report func(error)) (*tlsfiles.Source, error) {
	if !p.TLS.Enabled {
		return nil, nil //nolint:nilnil // nothing to read is no fault
	}
	return tlsfiles.New(tlsfiles.Files{
		Section: "peer.tls", CA: p.TLS.CAFile, Cert: p.TLS.CertFile, Key: p.TLS.KeyFile, Report: report,
	})
}

// notAfter is until when the certificate, and the first of the authorities to
// expire, are valid; zero where there is no such file.
func (a peerAccess) notAfter() (cert, ca time.Time) {
	if a.files == nil {
		return cert, ca
	}
	return a.files.NotAfter()
}

// faults says what is wrong with the files of peer.tls, as they were last read.
func (a peerAccess) faults() []string {
	if a.files == nil {
		return nil
	}
	return a.files.Faults()
}

// watch reads the files of peer.tls now and then, until ctx ends.
func (a peerAccess) watch(ctx context.Context) {
	if a.files != nil {
		a.files.Watch(ctx)
	}
}

// server is the listener's side; nil without TLS.
func (a peerAccess) server() *tls.Config {
	if a.files == nil {
		return nil
	}
	return a.files.Server(a.auth)
}

// client is the asking side: it always checks whom it talks to. nil without TLS.
func (a peerAccess) client() func(host string) (*tls.Config, error) {
	if a.files == nil {
		return nil
	}
	return func(host string) (*tls.Config, error) { return a.files.Client(host, false) }
}
