// Package chromium drives a headless Chromium for tests of the status page: it
// opens pages, evaluates expressions in them and takes pictures. It speaks the
// DevTools protocol over a pair of pipes, of which it needs half a dozen calls
// that have not changed in years; a client with bindings for all of it would be
// by far the largest dependency here, and breaks with browsers newer than itself.
//
// For tests only. The browser reaches nothing but loopback.
package chromium

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"
)

// Patience bounds each call and wait, against hanging only.
const Patience = time.Minute

// find returns a Chromium, "" where there is none.
func find() string {
	for _, name := range []string{"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// Browser is a running Chromium.
type Browser struct {
	out  io.WriteCloser
	mu   sync.Mutex
	last int
	open map[int]chan reply
	tabs map[string]*Tab // by session
	err  error           // why reading ended
	done chan struct{}
}

type reply struct {
	ID        int             `json:"id"`
	SessionID string          `json:"sessionId"`
	Method    string          `json:"method"`
	Params    json.RawMessage `json:"params"`
	Result    json.RawMessage `json:"result"`
	Error     *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// Start runs a Chromium until the test ends. A machine without one fails the
// test: `make test-page` installs it.
func Start(t *testing.T) *Browser {
	t.Helper()
	path := find()
	if path == "" {
		t.Fatal("there is no Chromium: test/install chromium")
	}
	toBrowser, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	in, fromBrowser, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, path,
		"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
		"--no-first-run", "--no-default-browser-check", "--disable-extensions", "--disable-sync",
		"--disable-background-networking", "--disable-component-update", "--disable-default-apps",
		"--no-proxy-server", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
		"--remote-debugging-pipe", "--user-data-dir="+t.TempDir(), "about:blank")
	cmd.ExtraFiles = []*os.File{toBrowser, fromBrowser} // 3 and 4, as the flag expects
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = toBrowser.Close(), fromBrowser.Close()
	b := &Browser{out: out, open: map[int]chan reply{}, tabs: map[string]*Tab{}, done: make(chan struct{})}
	go b.read(in)
	t.Cleanup(func() {
		_, _ = b.call("", "Browser.close", nil) // it may be gone already
		end := time.AfterFunc(Patience/6, cancel)
		_ = cmd.Wait()
		end.Stop()
		cancel()
		_ = out.Close()
		<-b.done
		_ = in.Close()
	})
	return b
}

func (b *Browser) read(in io.Reader) {
	defer close(b.done)
	r := bufio.NewReaderSize(in, 1<<20)
	for {
		message, err := r.ReadBytes(0)
		if err != nil {
			b.fail(fmt.Errorf("chromium has ended: %w", err))
			return
		}
		var m reply
		if err := json.Unmarshal(message[:len(message)-1], &m); err != nil {
			b.fail(fmt.Errorf("chromium said %q: %w", message, err))
			return
		}
		b.hand(m)
	}
}

func (b *Browser) hand(m reply) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m.ID != 0 {
		if answer := b.open[m.ID]; answer != nil {
			answer <- m
			delete(b.open, m.ID)
		}
		return
	}
	if tab := b.tabs[m.SessionID]; tab != nil {
		tab.note(m)
	}
}

func (b *Browser) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
	for _, answer := range b.open {
		close(answer)
	}
	b.open = map[int]chan reply{}
}

func (b *Browser) call(session, method string, params any) (json.RawMessage, error) {
	if params == nil {
		params = struct{}{}
	}
	b.mu.Lock()
	if b.err != nil {
		b.mu.Unlock()
		return nil, b.err
	}
	b.last++
	answer := make(chan reply, 1)
	b.open[b.last] = answer
	request := map[string]any{"id": b.last, "method": method, "params": params}
	if session != "" {
		request["sessionId"] = session
	}
	message, err := json.Marshal(request)
	if err == nil {
		_, err = b.out.Write(append(message, 0))
	}
	b.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	select {
	case m, ok := <-answer:
		switch {
		case !ok:
			return nil, b.err
		case m.Error != nil:
			return nil, fmt.Errorf("%s: %s", method, m.Error.Message)
		}
		return m.Result, nil
	case <-time.After(Patience):
		return nil, fmt.Errorf("%s: chromium has not answered within %s", method, Patience)
	}
}

// Tab is an open page.
type Tab struct {
	b       *Browser
	session string
	faults  []string // guarded by Browser.mu
}

// note keeps what the page complains of: exceptions, errors in the console and
// violations of its own policy.
func (t *Tab) note(m reply) {
	switch m.Method {
	case "Runtime.exceptionThrown", "Log.entryAdded":
		t.faults = append(t.faults, string(m.Params))
	case "Runtime.consoleAPICalled":
		t.faults = append(t.faults, string(m.Params))
	}
}

// Faults returns all that the page has complained of so far.
func (t *Tab) Faults() []string {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	return append([]string(nil), t.faults...)
}

// Open opens a page of the size.
func (b *Browser) Open(t *testing.T, url string, width, height int) *Tab {
	t.Helper()
	var target struct{ TargetID string }
	b.must(t, "", "Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.must(t, "", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	tab := &Tab{b: b, session: attached.SessionID}
	b.mu.Lock()
	b.tabs[tab.session] = tab
	b.mu.Unlock()
	tab.must(t, "Runtime.enable", nil, nil)
	tab.must(t, "Log.enable", nil, nil)
	tab.must(t, "Page.enable", nil, nil)
	tab.Size(t, width, height)
	tab.must(t, "Page.navigate", map[string]any{"url": url}, nil)
	return tab
}

// Size sets the window's size in CSS pixels.
func (t *Tab) Size(tb *testing.T, width, height int) {
	tb.Helper()
	t.must(tb, "Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
}

// Scheme makes the page light or dark.
func (t *Tab) Scheme(tb *testing.T, scheme string) {
	tb.Helper()
	t.must(tb, "Emulation.setEmulatedMedia", map[string]any{
		"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}},
	}, nil)
}

// Scripts turns JavaScript on or off, for the next page that is loaded.
func (t *Tab) Scripts(tb *testing.T, on bool) {
	tb.Helper()
	t.must(tb, "Emulation.setScriptExecutionDisabled", map[string]any{"value": !on}, nil)
}

// Load loads another page.
func (t *Tab) Load(tb *testing.T, url string) {
	tb.Helper()
	t.must(tb, "Page.navigate", map[string]any{"url": url}, nil)
}

// Eval evaluates an expression, awaits it where it is a promise, and decodes
// its value into v.
func (t *Tab) Eval(tb *testing.T, expression string, v any) {
	tb.Helper()
	if err := t.eval(expression, v); err != nil {
		tb.Fatal(err)
	}
}

func (t *Tab) eval(expression string, v any) error {
	raw, err := t.b.call(t.session, "Runtime.evaluate", map[string]any{
		"expression": expression, "awaitPromise": true, "returnByValue": true,
	})
	if err != nil {
		return err
	}
	var result struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	if err := json.Unmarshal(raw, &result); err != nil {
		return err
	}
	if len(result.ExceptionDetails) > 0 {
		return fmt.Errorf("%s: %s", expression, result.ExceptionDetails)
	}
	if len(result.Result.Value) == 0 {
		return errors.New(expression + ": undefined")
	}
	return json.Unmarshal(result.Result.Value, v)
}

// Await evaluates the expression until it is true.
func (t *Tab) Await(tb *testing.T, expression string) {
	tb.Helper()
	deadline := time.Now().Add(Patience)
	for {
		var yes bool
		err := t.eval("Boolean("+expression+")", &yes)
		if err == nil && yes {
			return
		}
		if time.Now().After(deadline) {
			var page string
			_ = t.eval("document.body.innerText", &page)
			tb.Fatalf("within %s this has not come true: %s (%v)\nthe page:\n%s\nits faults: %v", Patience, expression, err, page, t.Faults())
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// Picture writes a PNG of the whole page.
func (t *Tab) Picture(tb *testing.T, file string) {
	tb.Helper()
	var shot struct{ Data string }
	t.must(tb, "Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true}, &shot)
	png, err := base64.StdEncoding.DecodeString(shot.Data)
	if err == nil {
		err = os.WriteFile(file, png, 0o644)
	}
	if err != nil {
		tb.Fatal(err)
	}
}

func (t *Tab) must(tb *testing.T, method string, params, v any) {
	tb.Helper()
	t.b.must(tb, t.session, method, params, v)
}

func (b *Browser) must(t *testing.T, session, method string, params, v any) {
	t.Helper()
	raw, err := b.call(session, method, params)
	if err == nil && v != nil {
		err = json.Unmarshal(raw, v)
	}
	if err != nil {
		t.Fatal(err)
	}
}
