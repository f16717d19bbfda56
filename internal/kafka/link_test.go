package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// piped makes connections whose other ends are served by serve.
func piped(serve func(net.Conn)) (Options, *atomic.Int64) {
	var dials atomic.Int64
	return Options{Dial: func(context.Context, string, string) (net.Conn, error) {
		dials.Add(1)
		ours, theirs := net.Pipe()
		go serve(theirs)
		return ours, nil
	}}, &dials
}

// speechless takes requests and says nothing.
func speechless(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

// Whoever waits for a connection that fails hears of it at once, and does not
// wait for the same broker again, one after the other.
func TestOneSilenceIsForAllWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const patience = 10 * time.Second
		o, dials := piped(speechless)
		ls := newLinks(o, patience)
		defer ls.close()
		began := time.Now()
		var waiting sync.WaitGroup
		for range 8 {
			waiting.Go(func() {
				_, err := ls.fetch(t.Context(), "b:9092", newFetch(sarama.ReadCommitted, 1))
				var fault *linkFault
				if !errors.As(err, &fault) || answered(err) || lasting(err) {
					t.Errorf("error %v", err)
				}
				if took := time.Since(began); took != patience {
					t.Errorf("it took %v", took)
				}
			})
		}
		waiting.Wait()
		if n := dials.Load(); n != 1 {
			t.Errorf("%d connections", n)
		}
		// The next one tries again.
		if _, err := ls.fetch(t.Context(), "b:9092", newFetch(sarama.ReadCommitted, 1)); err == nil || dials.Load() != 2 {
			t.Errorf("error %v, %d connections", err, dials.Load())
		}
	})
}

// What nobody waits for any more asks nobody.
func TestFetchesOfNobodyAreNotMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, dials := piped(speechless)
		ls := newLinks(o, 10*time.Second)
		defer ls.close()
		var waiting sync.WaitGroup
		waiting.Go(func() { _, _ = ls.fetch(t.Context(), "b:9092", newFetch(sarama.ReadCommitted, 1)) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for range 5 {
			waiting.Go(func() {
				if _, err := ls.fetch(ctx, "b:9092", newFetch(sarama.ReadCommitted, 1)); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("error %v", err)
				}
			})
		}
		waiting.Wait()
		if n := dials.Load(); n != 1 {
			t.Errorf("%d connections", n)
		}
	})
}

// A broker that refuses to tell its versions is asked again over another
// connection.
func TestRefusedVersionsAreAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		o, dials := piped(func(conn net.Conn) {
			defer conn.Close()
			for {
				var size [4]byte
				if _, err := io.ReadFull(conn, size[:]); err != nil {
					return
				}
				body := make([]byte, binary.BigEndian.Uint32(size[:]))
				if _, err := io.ReadFull(conn, body); err != nil {
					return
				}
				var resp kmsg.Response
				tags := []byte(nil)
				if kmsg.Key(binary.BigEndian.Uint16(body)) == kmsg.ApiVersions {
					v := kmsg.NewPtrApiVersionsResponse()
					if asked.Add(1) == 1 {
						v.ErrorCode = int16(sarama.ErrUnsupportedVersion)
					}
					v.ApiKeys = append(v.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: int16(kmsg.Fetch), MaxVersion: fetchVersion})
					resp = v
				} else {
					f := kmsg.NewPtrFetchResponse()
					f.SetVersion(fetchVersion)
					resp, tags = f, []byte{1, 7, 2, 'x', 'y'} // one that nobody knows
				}
				answer := append(append(append(make([]byte, 4), body[4:8]...), tags...), resp.AppendTo(nil)...)
				binary.BigEndian.PutUint32(answer, uint32(len(answer)-4))
				if _, err := conn.Write(answer); err != nil {
					return
				}
			}
		})
		ls := newLinks(o, 10*time.Second)
		defer ls.close()
		for i, want := range []error{sarama.ErrUnsupportedVersion, nil, nil} {
			if _, err := ls.fetch(t.Context(), "b:9092", newFetch(sarama.ReadCommitted, 1)); !errors.Is(err, want) {
				t.Errorf("request %d: %v", i, err)
			}
		}
		if n := dials.Load(); n != 2 {
			t.Errorf("%d connections", n)
		}
	})
}

// Whatever lies in an answer's header, nothing but an error comes of it.
func FuzzSkipTags(f *testing.F) {
	f.Add([]byte{0, 1})
	f.Add([]byte{1, 7, 2, 'x', 'y', 5})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, body []byte) {
		if rest, err := skipTags(body); err == nil && len(rest) >= len(body) {
			t.Errorf("%d of %d bytes are left", len(rest), len(body))
		}
	})
}
