package probe

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAddress(t *testing.T) {
	for listen, want := range map[string]string{
		":8080":             "127.0.0.1:8080",
		"0.0.0.0:8080":      "127.0.0.1:8080",
		"[::]:8080":         "[::1]:8080",
		"10.0.0.7:8080":     "10.0.0.7:8080",
		"[fd00::7]:8080":    "[fd00::7]:8080",
		"pod.example:18080": "pod.example:18080",
	} {
		if got, err := Address(listen); err != nil || got != want {
			t.Errorf("Address(%q) = %q, %v, want %q", listen, got, err, want)
		}
	}
	for _, listen := range []string{"", ":0", "127.0.0.1:0", "8080"} {
		if got, err := Address(listen); !errors.Is(err, ErrAddress) {
			t.Errorf("Address(%q) = %q, %v, want ErrAddress", listen, got, err)
		}
	}
}

func ask(t *testing.T, path string) (string, error) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == Ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(w, "of "+r.URL.Path+"\n")
	}))
	defer s.Close()
	return Ask(t.Context(), s.Listener.Addr().String(), path)
}

func TestAsk(t *testing.T) {
	if said, err := ask(t, Live); err != nil || said != "of /livez" {
		t.Errorf("%q, %v, want what it says", said, err)
	}
	_, err := ask(t, Ready)
	if err == nil || !strings.Contains(err.Error(), "503") || !strings.HasSuffix(err.Error(), "of /readyz") {
		t.Errorf("%v, want the status and what was said", err)
	}
}

// A proxy that the environment names is for the world outside.
func TestAskGoesPastProxies(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	t.Setenv("http_proxy", "http://127.0.0.1:1")
	if _, err := ask(t, Live); err != nil {
		t.Error(err)
	}
}

func TestAskNobody(t *testing.T) {
	if _, err := Ask(t.Context(), "127.0.0.1:1", Live); err == nil {
		t.Error("nobody listens there, and it was an answer")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Ask(ctx, "127.0.0.1:1", Live); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want the context's end", err)
	}
}
