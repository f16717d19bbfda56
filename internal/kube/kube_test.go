package kube

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const token = "eyJ-a-token"

// apiServer is a server over TLS, and the Options of a pod that trusts it.
func apiServer(t *testing.T, handler http.HandlerFunc) Options {
	t.Helper()
	server := httptest.NewTLSServer(handler)
	server.Config.ErrorLog = nil
	t.Cleanup(server.Close)
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(at.Host)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name, content := range map[string]string{"token": token + "\n", "ca.crt": string(ca), "namespace": "prices"} {
		write(t, dir, name, content)
	}
	return Options{Host: host, Port: port, Dir: dir}
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// set is a StatefulSet as an API server writes it.
func set(metadata, spec string) string {
	return fmt.Sprintf(`{"kind":"StatefulSet","apiVersion":"apps/v1","metadata":{"name":"joiner","namespace":"prices"%s},"spec":{"serviceName":"joiner"%s},"status":{"replicas":7}}`, metadata, spec)
}

const notFound = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"statefulsets.apps \"joiner\" not found","reason":"NotFound","details":{"name":"joiner","group":"apps","kind":"statefulsets"},"code":404}`

func TestFate(t *testing.T) {
	for name, c := range map[string]struct {
		pod    string
		status int
		body   string
		gone   bool
		fails  bool
	}{
		"stays":                       {pod: "joiner-2", body: set("", `,"replicas":3`)},
		"scaled down":                 {pod: "joiner-3", body: set("", `,"replicas":3`), gone: true},
		"scaled to none":              {pod: "joiner-0", body: set("", `,"replicas":0`), gone: true},
		"one replica by default":      {pod: "joiner-0", body: set("", "")},
		"beyond the default":          {pod: "joiner-1", body: set("", ""), gone: true},
		"ordinals from 5, the last":   {pod: "joiner-7", body: set("", `,"replicas":3,"ordinals":{"start":5}`)},
		"ordinals from 5, beyond":     {pod: "joiner-8", body: set("", `,"replicas":3,"ordinals":{"start":5}`), gone: true},
		"ordinals from 5, below":      {pod: "joiner-4", body: set("", `,"replicas":3,"ordinals":{"start":5}`), gone: true},
		"ordinals without a start":    {pod: "joiner-2", body: set("", `,"replicas":3,"ordinals":{}`)},
		"being deleted":               {pod: "joiner-0", body: set(`,"deletionTimestamp":"2026-01-05T03:00:00Z"`, `,"replicas":3`), gone: true},
		"gone":                        {pod: "joiner-0", status: 404, body: notFound, gone: true},
		"404 of somebody else":        {pod: "joiner-0", status: 404, body: "404 page not found", fails: true},
		"404 of a path not served":    {pod: "joiner-0", status: 404, body: `{"kind":"Status","reason":"NotFound","details":{}}`, fails: true},
		"404 of another set":          {pod: "joiner-0", status: 404, body: strings.ReplaceAll(notFound, `"name":"joiner"`, `"name":"other"`), fails: true},
		"404 of a namespace":          {pod: "joiner-0", status: 404, body: strings.ReplaceAll(notFound, `"kind":"statefulsets"`, `"kind":"namespaces"`), fails: true},
		"no token accepted":           {pod: "joiner-0", status: 401, body: `{"kind":"Status","reason":"Unauthorized"}`, fails: true},
		"no right":                    {pod: "joiner-0", status: 403, body: `{"kind":"Status","reason":"Forbidden","details":{"name":"joiner"}}`, fails: true},
		"server fault":                {pod: "joiner-0", status: 500, body: notFound, fails: true},
		"a set, but not by a 200":     {pod: "joiner-3", status: 203, body: set("", `,"replicas":3`), fails: true},
		"garbage":                     {pod: "joiner-0", body: "<html>", fails: true},
		"nothing":                     {pod: "joiner-0", body: "", fails: true},
		"another kind":                {pod: "joiner-0", body: `{"kind":"Deployment","spec":{"replicas":0}}`, fails: true},
		"no spec":                     {pod: "joiner-0", body: `{"kind":"StatefulSet"}`, fails: true},
		"replicas that are no number": {pod: "joiner-0", body: set("", `,"replicas":"0"`), fails: true},
		"fewer than none":             {pod: "joiner-0", body: set("", `,"replicas":-1`), fails: true},
		"too large":                   {pod: "joiner-3", body: set("", `,"replicas":3`) + strings.Repeat(" ", maxAnswer), fails: true},
		"a name without an ordinal":   {pod: "joiner", fails: true},
		"a pod of a Deployment":       {pod: "joiner-6d4cf56db6-x2x9k", fails: true},
		"another number":              {pod: "joiner-007", fails: true},
		"a path":                      {pod: "../../../api/v1/secrets/x-0", fails: true},
		"no name":                     {pod: "-0", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			var asked *http.Request
			o := apiServer(t, func(w http.ResponseWriter, r *http.Request) {
				asked = r
				if c.status != 0 {
					w.WriteHeader(c.status)
				}
				_, _ = w.Write([]byte(c.body))
			})
			fate, err := o.Fate(t.Context(), c.pod)
			if (err != nil) != c.fails || fate.Gone != c.gone {
				t.Errorf("%+v, error %v; want gone %t, an error %t", fate, err, c.gone, c.fails)
			}
			if err == nil && fate.Why == "" {
				t.Error("it does not say why")
			}
			if c.body == "" && c.status == 0 && name != "nothing" {
				if asked != nil {
					t.Errorf("the API server was asked for %s", asked.URL)
				}
				return
			}
			switch {
			case asked.Method != http.MethodGet || asked.URL.Path != "/apis/apps/v1/namespaces/prices/statefulsets/joiner":
				t.Errorf("asked: %s %s", asked.Method, asked.URL.Path)
			case asked.Header.Get("Authorization") != "Bearer "+token:
				t.Errorf("authorization %q", asked.Header.Get("Authorization"))
			}
		})
	}
}

// A redirect is not followed: the token would go with it.
func TestNoRedirects(t *testing.T) {
	elsewhere := false
	o := apiServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/elsewhere" {
			elsewhere = true
			_, _ = w.Write([]byte(set("", `,"replicas":0`)))
			return
		}
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	})
	if fate, err := o.Fate(t.Context(), "joiner-0"); err == nil || elsewhere {
		t.Errorf("%+v, error %v; followed: %t", fate, err, elsewhere)
	}
}

// A server that does not answer costs what the context says, and no more.
func TestSlowServer(t *testing.T) {
	arrived, over := make(chan struct{}), make(chan struct{})
	o := apiServer(t, func(http.ResponseWriter, *http.Request) {
		close(arrived)
		<-over // and not the request's end, or its empty answer races with that
	})
	defer close(over)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	if _, err := o.Fate(ctx, "joiner-0"); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// A certificate of another authority, or none to check it by: the token stays
// here.
func TestUntrustedServer(t *testing.T) {
	asked := false
	handler := func(w http.ResponseWriter, _ *http.Request) {
		asked = true
		_, _ = w.Write([]byte(set("", `,"replicas":0`)))
	}
	o := apiServer(t, handler)
	other, err := os.ReadFile("testdata/other-ca.crt")
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"another authority": string(other), "no certificate": "nothing", "empty": ""} {
		write(t, o.Dir, "ca.crt", content)
		if fate, err := o.Fate(t.Context(), "joiner-0"); err == nil {
			t.Errorf("%s: %+v", name, fate)
		}
	}
	if asked {
		t.Error("the server was asked all the same")
	}
}

// What is not mounted, or not as it should be, is an error that does not hold
// the token.
func TestServiceAccount(t *testing.T) {
	good := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(set("", `,"replicas":0`))) }
	for _, name := range []string{"token", "ca.crt", "namespace"} {
		for what, change := range map[string]func(t *testing.T, dir string){
			"missing": func(t *testing.T, dir string) {
				if err := os.Remove(filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			},
			"empty":     func(t *testing.T, dir string) { write(t, dir, name, "\n") },
			"too large": func(t *testing.T, dir string) { write(t, dir, name, strings.Repeat("x", 2<<20)) },
			"two lines": func(t *testing.T, dir string) { write(t, dir, name, token+"\nx") },
		} {
			t.Run(name+" "+what, func(t *testing.T) {
				o := apiServer(t, good)
				change(t, o.Dir)
				fate, err := o.Fate(t.Context(), "joiner-0")
				if err == nil || fate.Gone {
					t.Fatalf("%+v, error %v", fate, err)
				}
				if strings.Contains(err.Error(), token) {
					t.Errorf("the error holds the token: %v", err)
				}
			})
		}
	}
}

func TestOutside(t *testing.T) {
	o := FromEnvironment(func(string) string { return "" })
	if _, err := o.Fate(t.Context(), "joiner-0"); !errors.Is(err, ErrOutside) {
		t.Errorf("error %v", err)
	}
	o = FromEnvironment(func(name string) string {
		return map[string]string{"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}[name]
	})
	if want := (Options{Host: "fd00::1", Port: "6443", Dir: ServiceAccountDir}); o != want || !o.Inside() {
		t.Errorf("%+v, want %+v", o, want)
	}
}

// Nobody listens: an error, as any other.
func TestNobodyListens(t *testing.T) {
	o := apiServer(t, nil)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, o.Port, _ = net.SplitHostPort(listener.Addr().String())
	_ = listener.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if fate, err := o.Fate(ctx, "joiner-0"); err == nil {
		t.Errorf("%+v", fate)
	}
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		set("", `,"replicas":3`), set(`,"deletionTimestamp":"x"`, ""), set("", `,"ordinals":{"start":2147483647},"replicas":2147483647`),
		notFound, `null`, `{"kind":"StatefulSet","spec":{}}`, `{"kind":"StatefulSet","spec":{"replicas":-1}}`, "",
	} {
		f.Add([]byte(seed), int32(2))
	}
	f.Fuzz(func(t *testing.T, body []byte, ordinal int32) {
		saysGone(body, "joiner")
		s, err := decode(body)
		if err != nil {
			return
		}
		fate := s.fate("joiner", ordinal)
		if s.Metadata.DeletionTimestamp == nil && s.Spec.Replicas != nil && *s.Spec.Replicas == 0 && !fate.Gone {
			t.Errorf("of no replicas one stays: %+v", fate)
		}
	})
}

func FuzzOrdinal(f *testing.F) {
	for _, seed := range []string{"joiner-0", "joiner-eu-12", "joiner", "-1", "a-01", "a-4294967296", "a/b-1", "A-1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, pod string) {
		set, ordinal, err := Ordinal(pod)
		if err != nil {
			return
		}
		if back := fmt.Sprintf("%s-%d", set, ordinal); back != pod {
			t.Errorf("%q became %q", pod, back)
		}
		if strings.ContainsAny(set, "/?#%\\ ") {
			t.Errorf("%q is no part of a path", set)
		}
	})
}
