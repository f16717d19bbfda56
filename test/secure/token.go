package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	// issuer and audience are what the broker expects of a token.
	issuer   = "joiner-test"
	audience = "kafka"

	keyID           = "1"
	defaultLifetime = 5 * time.Minute
)

// endpoint grants tokens to clients that show their secret (RFC 6749, 4.4) and
// publishes the key that they are signed with (RFC 7517).
type endpoint struct {
	key      *ecdsa.PrivateKey
	clients  string // file, read at each request: a changed secret counts at once
	lifetime time.Duration
}

// serve answers on both addresses until ctx ends. The broker fetches the key
// from the one without TLS, since it has no trust of its own for it.
func serve(ctx context.Context, dir, plain, encrypted string, lifetime time.Duration) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("making the signing key: %w", err)
	}
	e := &endpoint{key: key, clients: filepath.Join(dir, clients), lifetime: lifetime}
	server := &http.Server{
		Handler: e.routes(), ReadHeaderTimeout: 10 * time.Second,
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certificateOf(dir)},
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()

	first, err := net.Listen("tcp", plain)
	if err != nil {
		return err
	}
	second, err := net.Listen("tcp", encrypted)
	if err != nil {
		return errors.Join(err, first.Close())
	}
	fmt.Printf("http %s https %s\n", first.Addr(), second.Addr())
	ended := make(chan error, 2)
	go func() { ended <- server.Serve(first) }()
	go func() { ended <- server.ServeTLS(second, "", "") }()
	err = <-ended
	_ = server.Close()
	err = errors.Join(err, <-ended)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// certificateOf reads the certificate for each connection, so that a new one
// counts at once.
func certificateOf(dir string) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, brokerCert), filepath.Join(dir, brokerKey))
		return &pair, err
	}
}

func (e *endpoint) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /token", e.token)
	mux.HandleFunc("GET /jwks", e.keys)
	return mux
}

func (e *endpoint) token(w http.ResponseWriter, r *http.Request) {
	if r.PostFormValue("grant_type") != "client_credentials" {
		refuse(w, http.StatusBadRequest, "unsupported_grant_type", "only client_credentials is granted")
		return
	}
	id, shown := credentials(r)
	known, err := e.secretOf(id)
	if err != nil {
		refuse(w, http.StatusInternalServerError, "server_error", err.Error())
		return
	}
	if known == "" || subtle.ConstantTimeCompare([]byte(known), []byte(shown)) != 1 {
		w.Header().Set("WWW-Authenticate", `Basic realm="tokens"`)
		refuse(w, http.StatusUnauthorized, "invalid_client", "unknown client or wrong secret")
		return
	}
	scope := r.PostFormValue("scope")
	token, err := e.sign(id, scope, time.Now())
	if err != nil {
		refuse(w, http.StatusInternalServerError, "server_error", err.Error())
		return
	}
	answer := map[string]any{"access_token": token, "token_type": "Bearer", "expires_in": int(e.lifetime.Seconds())}
	if scope != "" {
		answer["scope"] = scope
	}
	w.Header().Set("Cache-Control", "no-store")
	reply(w, http.StatusOK, answer)
}

// credentials are in the header, both parts form-encoded (RFC 6749, 2.3.1), or
// in the body.
func credentials(r *http.Request) (id, secret string) {
	id, secret, ok := r.BasicAuth()
	if !ok {
		return r.PostFormValue("client_id"), r.PostFormValue("client_secret")
	}
	for _, part := range []*string{&id, &secret} {
		if decoded, err := url.QueryUnescape(*part); err == nil {
			*part = decoded
		}
	}
	return id, secret
}

// secretOf is empty for a client that is not known.
func (e *endpoint) secretOf(id string) (string, error) {
	text, err := os.ReadFile(e.clients)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if name, secret, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name == id {
			return secret, nil
		}
	}
	return "", nil
}

// sign makes a JWT (RFC 7519) for the client, signed by ES256 (RFC 7518, 3.4).
func (e *endpoint) sign(id, scope string, now time.Time) (string, error) {
	claims := map[string]any{
		"iss": issuer, "aud": audience, "sub": id,
		"iat": now.Unix(), "exp": now.Add(e.lifetime).Unix(), "jti": secret(),
	}
	if scope != "" {
		claims["scope"] = strings.Fields(scope)
	}
	var parts []string
	for _, part := range []any{map[string]string{"alg": "ES256", "kid": keyID, "typ": "JWT"}, claims} {
		text, err := json.Marshal(part)
		if err != nil {
			return "", fmt.Errorf("encoding a token: %w", err)
		}
		parts = append(parts, base64.RawURLEncoding.EncodeToString(text))
	}
	signed := strings.Join(parts, ".")
	hash := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, e.key, hash[:])
	if err != nil {
		return "", fmt.Errorf("signing a token: %w", err)
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature), nil
}

func (e *endpoint) keys(w http.ResponseWriter, _ *http.Request) {
	point, err := e.key.PublicKey.Bytes() // 4, x, y
	if err != nil {
		refuse(w, http.StatusInternalServerError, "server_error", err.Error())
		return
	}
	reply(w, http.StatusOK, map[string]any{"keys": []map[string]string{{
		"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": keyID,
		"x": base64.RawURLEncoding.EncodeToString(point[1:33]),
		"y": base64.RawURLEncoding.EncodeToString(point[33:]),
	}}})
}

func refuse(w http.ResponseWriter, status int, code, description string) {
	reply(w, status, map[string]string{"error": code, "error_description": description})
}

func reply(w http.ResponseWriter, status int, answer any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer) // the client may have gone
}
