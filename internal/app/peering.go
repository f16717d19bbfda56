package app

import (
	"crypto/tls"
	"errors"
	"fmt"
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
	token remote.Token     // nil: none
	auth  bool             // a pod that asks must show a certificate
}

// newPeerAccess reads the files once, so that one that cannot be used is found
// at the start. Errors name the key.
func newPeerAccess(p config.Peer, faults *sampled.Log) (a peerAccess, err error) {
	a.auth = p.TLS.ClientAuth
	if p.Token != "" || p.TokenFile != "" {
		a.token = func() (string, error) {
			secret, err := p.ReadToken()
			return string(secret), err
		}
	}
	var errs []error
	for _, name := range p.AllowedNames {
		if err := remote.CheckName(name); err != nil {
			errs = append(errs, fmt.Errorf("peer.allowed_names: %w", err))
		}
	}
	if p.TLS.Enabled {
		a.files, err = tlsfiles.New(tlsfiles.Files{
			Section: "peer.tls", CA: p.TLS.CAFile, Cert: p.TLS.CertFile, Key: p.TLS.KeyFile,
			Report: func(err error) {
				faults.Warn("peer.tls", "a file of peer.tls cannot be used as it is now", zap.Error(err))
			},
		})
		errs = append(errs, err)
	}
	return a, errors.Join(errs...)
}

// notAfter is until when the certificate, and the first of the authorities to
// expire, are valid; zero where there is no such file.
func (a peerAccess) notAfter() (cert, ca time.Time) {
	if a.files == nil {
		return cert, ca
	}
	return a.files.NotAfter()
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
