package kafka

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

// sessions replaces connections before a broker ends them: with
// connections.max.reauth.ms, or a token that expires, it closes an
// authenticated connection when a request comes after its session's end
// (KIP-368). Authenticating again on the same connection would be the other
// way; a new connection is what every caller here is prepared for, brings the
// newest password or token, and meets a revoked one.
type sessions struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// renewEvery is how often sessions are looked at; a session is over at 85 to
// 95 per cent of what the broker gives it, so it may not be shorter than some
// ten of these.
const renewEvery = 250 * time.Millisecond

// renew begins to replace connections of client, which conns has dialled.
func (s *sessions) renew(ctx context.Context, client sarama.Client, dialer *conns) {
	s.wg.Go(func() {
		for pause(ctx, renewEvery) {
			for _, conn := range dialer.overdue(time.Now()) {
				s.wg.Go(func() { replace(client, conn) })
			}
		}
	})
}

// replace has the client open another connection in conn's place, when the
// requests under way on it are answered.
func replace(client sarama.Client, conn connection) {
	for _, b := range client.Brokers() {
		if b.Addr() != conn.broker {
			continue
		}
		// Close waits for the responses. Who asks in between gets an error and
		// asks again; but for a join, which ends with its connection, and every
		// claim with it: conns.overdue keeps away from one under way.
		_ = b.Close()
		_ = b.Open(client.Config())
		if !slices.Contains(client.Brokers(), b) {
			_ = b.Close() // the client has let go of it meanwhile, and would never close it
		}
	}
	// A seed broker's, which the client does not show.
	_ = conn.Close()
}

func (s *sessions) close() {
	s.cancel()
	s.wg.Wait()
}
