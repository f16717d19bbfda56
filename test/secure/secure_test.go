package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// started makes a directory, serves from it until the test ends, and returns a
// client that trusts the directory's authority.
func started(t *testing.T) (dir, plain, encrypted string, client *http.Client) {
	t.Helper()
	dir = t.TempDir()
	if err := makeAll(dir, "127.0.0.1"); err != nil {
		t.Fatal(err)
	}
	plain, encrypted = freeAddress(t), freeAddress(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- serve(ctx, dir, plain, encrypted, time.Minute) }()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(read(t, dir, caCert))) {
		t.Fatal("no authority in ca.pem")
	}
	client = &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots},
	}}
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serving ended with %v", err)
		}
	})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("tcp", encrypted) // the second to listen
		if err == nil {
			_ = conn.Close()
			return dir, plain, encrypted, client
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// answer is what the endpoint may say.
type answer struct {
	Token   string `json:"access_token"`
	Type    string `json:"token_type"`
	Expires int    `json:"expires_in"`
	Error   string `json:"error"`
}

func ask(t *testing.T, client *http.Client, address string, form url.Values, login ...string) (int, answer) {
	t.Helper()
	request, err := http.NewRequest(http.MethodPost, address, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if len(login) == 2 {
		request.SetBasicAuth(login[0], login[1])
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	var a answer
	if err := json.NewDecoder(response.Body).Decode(&a); err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, a
}

func TestTokens(t *testing.T) {
	dir, plain, encrypted, client := started(t)
	known := strings.TrimSpace(read(t, dir, "client_secret"))
	grant := url.Values{"grant_type": {"client_credentials"}}
	with := func(more ...string) url.Values {
		form := url.Values{"grant_type": {"client_credentials"}}
		for i := 0; i < len(more); i += 2 {
			form.Set(more[i], more[i+1])
		}
		return form
	}
	for _, test := range []struct {
		name   string
		form   url.Values
		login  []string
		status int
		fault  string
	}{
		{"in the header", grant, []string{user, known}, 200, ""},
		{"in the body", with("client_id", user, "client_secret", known), nil, 200, ""},
		{"wrong secret", grant, []string{user, known + "x"}, 401, "invalid_client"},
		{"no secret", grant, []string{user, ""}, 401, "invalid_client"},
		{"unknown client", grant, []string{"nobody", known}, 401, "invalid_client"},
		{"nobody", grant, nil, 401, "invalid_client"},
		{"another grant", url.Values{"grant_type": {"password"}}, []string{user, known}, 400, "unsupported_grant_type"},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, address := range []string{"http://" + plain + "/token", "https://" + encrypted + "/token"} {
				status, a := ask(t, client, address, test.form, test.login...)
				if status != test.status || a.Error != test.fault || (a.Token != "") != (test.status == 200) {
					t.Errorf("%s answers %d %+v", address, status, a)
				}
			}
		})
	}

	// A changed secret counts from the next request on.
	if err := os.WriteFile(filepath.Join(dir, clients), []byte(user+" new secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if status, _ := ask(t, client, "http://"+plain+"/token", grant, user, known); status != 401 {
		t.Errorf("the old secret: %d", status)
	}
	// Both parts are form-encoded before they become a header.
	if status, _ := ask(t, client, "http://"+plain+"/token", grant, user, url.QueryEscape("new secret")); status != 200 {
		t.Errorf("the new secret: %d", status)
	}
}

func TestTokenIsSignedByThePublishedKey(t *testing.T) {
	dir, plain, _, client := started(t)
	form := url.Values{"grant_type": {"client_credentials"}, "scope": {"one two"}}
	_, a := ask(t, client, "http://"+plain+"/token", form, user, strings.TrimSpace(read(t, dir, "client_secret")))
	parts := strings.Split(a.Token, ".")
	if len(parts) != 3 {
		t.Fatalf("token %q", a.Token)
	}
	var claims struct {
		Issuer   string   `json:"iss"`
		Audience string   `json:"aud"`
		Subject  string   `json:"sub"`
		Issued   int64    `json:"iat"`
		Expires  int64    `json:"exp"`
		Scope    []string `json:"scope"`
	}
	if err := json.Unmarshal(decode(t, parts[1]), &claims); err != nil {
		t.Fatal(err)
	}
	if claims.Issuer != issuer || claims.Audience != audience || claims.Subject != user || len(claims.Scope) != 2 ||
		claims.Expires-claims.Issued != 60 || a.Expires != 60 || a.Type != "Bearer" {
		t.Errorf("claims %+v, answer %+v", claims, a)
	}

	signature, hash := decode(t, parts[2]), sha256.Sum256([]byte(parts[0]+"."+parts[1]))
	r, s := new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:])
	if key := published(t, client, "http://"+plain+"/jwks"); !ecdsa.Verify(key, hash[:], r, s) {
		t.Error("the published key does not verify the token")
	}
}

func published(t *testing.T, client *http.Client, address string) *ecdsa.PublicKey {
	t.Helper()
	response, err := client.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	var set struct {
		Keys []struct{ X, Y, Kid, Alg string }
	}
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &set); err != nil || len(set.Keys) != 1 || set.Keys[0].Alg != "ES256" {
		t.Fatalf("%s: %v", text, err)
	}
	point := append([]byte{4}, append(decode(t, set.Keys[0].X), decode(t, set.Keys[0].Y)...)...)
	key, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func decode(t *testing.T, text string) []byte {
	t.Helper()
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A cluster that was kept goes on with its certificates and passwords.
func TestMakeKeepsWhatIsThere(t *testing.T) {
	dir := t.TempDir()
	if err := makeAll(dir, "127.0.0.1"); err != nil {
		t.Fatal(err)
	}
	before := make(map[string]string)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		before[e.Name()] = read(t, dir, e.Name())
	}
	if len(before) != 12 {
		t.Errorf("%d files were made", len(before))
	}
	if err := makeAll(dir, "127.0.0.1"); err != nil {
		t.Fatal(err)
	}
	for name, text := range before {
		if read(t, dir, name) != text {
			t.Errorf("%s was made anew", name)
		}
	}
}
