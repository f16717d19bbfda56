package main

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The live demo shows its page, goes on until it is interrupted, and ends well.
func TestDemoLive(t *testing.T) {
	program := exec.Command("joiner", "demo", "--live", "--every", "1s")
	program.Stderr = t.Output()
	out, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	all, joined, interrupted := "", false, false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		all += lines.Text() + "\n"
		if url, ok := strings.CutPrefix(lines.Text(), "status page: "); ok {
			if page := fetch(t, url); !strings.Contains(page, "<title>joiner</title>") {
				t.Errorf("the page: %s", page)
			}
		}
		joined = joined || strings.Contains(lines.Text(), "m3 joins")
		if !interrupted && joined && strings.Contains(lines.Text(), "settled") {
			interrupted = true
			if err := program.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := program.Wait(); err != nil || !interrupted || !strings.Contains(all, " 0 missing") {
		t.Errorf("%v\n%s", err, all)
	}
}

func fetch(t *testing.T, url string) string {
	t.Helper()
	defer http.DefaultClient.CloseIdleConnections()
	resp, err := http.Get(url)
	if err != nil {
		t.Error(err)
		return ""
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return string(body)
}
