package kafka

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Why connections are authenticated here and not by sarama: it takes PLAIN's
// password from a configuration that all connections of a client share, so that
// a rotated one could not be used without a race; its errors do not name the
// broker; and the wrong password would be found by each client again and again.

// oauthBearer is the mechanism of RFC 7628 (KIP-255).
const oauthBearer = "OAUTHBEARER"

// credential is who authenticates, with the secret of this connection.
type credential struct{ user, secret string }

// mechanismOf returns what speaks the mechanism of this name; nil: nobody.
// SCRAM takes passwords as their bytes, as Kafka does, without SASLprep.
func mechanismOf(name string) func(credential) sasl.Mechanism {
	switch name {
	case "PLAIN":
		return func(c credential) sasl.Mechanism { return plain.Auth{User: c.user, Pass: c.secret}.AsMechanism() }
	case "SCRAM-SHA-256":
		return func(c credential) sasl.Mechanism { return scram.Auth{User: c.user, Pass: c.secret}.AsSha256Mechanism() }
	case "SCRAM-SHA-512":
		return func(c credential) sasl.Mechanism { return scram.Auth{User: c.user, Pass: c.secret}.AsSha512Mechanism() }
	case oauthBearer:
		return func(c credential) sasl.Mechanism { return oauth.Auth{Token: c.secret}.AsMechanism() }
	}
	return nil
}

// credential reads the secret, or gets a token.
func (a *Access) credential(ctx context.Context) (credential, error) {
	s := a.security.SASL
	if a.tokens != nil {
		token, err := a.tokens.get(ctx)
		return credential{s.ClientID, token}, err
	}
	password, err := s.Password()
	if err != nil {
		return credential{}, fmt.Errorf("the password cannot be read: %w", err)
	}
	return credential{s.Username, password}, nil
}

// authenticate returns how long the broker lets the connection live (KIP-368),
// 0 without limit.
func (a *Access) authenticate(ctx context.Context, x *opening, broker string) (time.Duration, error) {
	c, err := a.credential(ctx)
	if err != nil {
		return 0, err
	}
	mechanism := mechanismOf(a.security.SASL.Mechanism)(c)
	if err := x.handshake(mechanism.Name()); err != nil {
		return 0, err
	}
	lifetime, err := x.converse(ctx, mechanism, broker, c.secret)
	if a.tokens != nil && errors.Is(err, errNotTaken) {
		// It may have been revoked. A connection that ends says nothing of it: a
		// broker that restarts ends those of every pod, and if each asked for
		// tokens as often as it dials, the endpoint would lock the client out.
		a.tokens.drop(c.secret)
	}
	return lifetime, err
}

// opening speaks the few requests that precede all others on a connection.
type opening struct {
	conn     net.Conn
	clientID string
	last     int32 // correlation id
}

// maxAnswer bounds an answer, in bytes: those asked for here are small.
const maxAnswer = 1 << 20

// ask sends a request and decodes its answer into response. The versions asked
// for have no tagged fields in the header of the response.
func (x *opening) ask(request kmsg.Request, response kmsg.Response) error {
	x.last++
	f := kmsg.NewRequestFormatter(kmsg.FormatterClientID(x.clientID))
	if _, err := x.conn.Write(f.AppendRequest(nil, request, x.last)); err != nil {
		return err
	}
	var head [8]byte // size, correlation id
	if _, err := io.ReadFull(x.conn, head[:]); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size < 4 || size > maxAnswer {
		return fmt.Errorf("an answer of %d bytes: not a Kafka broker, or a listener that speaks another protocol", size)
	}
	if id := int32(binary.BigEndian.Uint32(head[4:])); id != x.last {
		return fmt.Errorf("an answer to request %d, %d was asked", id, x.last)
	}
	body := make([]byte, size-4)
	if _, err := io.ReadFull(x.conn, body); err != nil {
		return err
	}
	response.SetVersion(request.GetVersion())
	if err := response.ReadFrom(body); err != nil {
		return fmt.Errorf("an answer that cannot be read: %w", err)
	}
	return nil
}

// versions asks for what any broker tells anybody.
func (x *opening) versions() error {
	return x.ask(kmsg.NewPtrApiVersionsRequest(), kmsg.NewPtrApiVersionsResponse()) // version 0
}

// handshake agrees on the mechanism (KIP-43, KIP-152).
func (x *opening) handshake(mechanism string) error {
	req, resp := kmsg.NewPtrSASLHandshakeRequest(), kmsg.NewPtrSASLHandshakeResponse()
	req.SetVersion(1)
	req.Mechanism = mechanism
	if err := x.ask(req, resp); err != nil {
		return err
	}
	switch code := sarama.KError(resp.ErrorCode); code {
	case sarama.ErrNoError:
		return nil
	case sarama.ErrUnsupportedSASLMechanism:
		return fmt.Errorf("the broker does not offer this mechanism here, it offers %s",
			redacted(strings.Join(resp.SupportedMechanisms, ", ")))
	case sarama.ErrIllegalSASLState:
		return errors.New("this listener takes no authentication: leave kafka.sasl.mechanism empty, or use another port")
	default:
		return fmt.Errorf("SASL handshake: error %d: %s", int16(code), code.Error())
	}
}

// converse authenticates. secret never appears in its errors.
func (x *opening) converse(ctx context.Context, mechanism sasl.Mechanism, broker, secret string) (time.Duration, error) {
	session, message, err := mechanism.Authenticate(ctx, broker)
	if err != nil {
		return 0, hide(err, secret)
	}
	var said error // why the broker does not take a token, until it ends the conversation
	for {
		req, resp := kmsg.NewPtrSASLAuthenticateRequest(), kmsg.NewPtrSASLAuthenticateResponse()
		req.SetVersion(1) // the first that tells the lifetime
		req.SASLAuthBytes = message
		if err := x.ask(req, resp); err != nil {
			return 0, cmp.Or(said, err)
		}
		if resp.ErrorCode != 0 {
			return 0, refusedBy(resp, secret)
		}
		done, next, err := session.Challenge(resp.SASLAuthBytes)
		if err != nil {
			return 0, cmp.Or(said, hide(err, secret))
		}
		if mechanism.Name() == oauthBearer && len(resp.SASLAuthBytes) > 0 { // RFC 7628, section 3.2.2
			said = fmt.Errorf("%w: %s", errNotTaken, quoted(string(resp.SASLAuthBytes), secret))
		}
		if done {
			return time.Duration(resp.SessionLifetimeMillis) * time.Millisecond, nil
		}
		message = next
	}
}

// errNotTaken is the broker's word that the credentials are wrong
// (SASL_AUTHENTICATION_FAILED).
var errNotTaken = errors.New("authentication failed")

func refusedBy(resp *kmsg.SASLAuthenticateResponse, secret string) error {
	err := errNotTaken
	if code := sarama.KError(resp.ErrorCode); code != sarama.ErrSASLAuthenticationFailed {
		err = fmt.Errorf("SASL authentication: error %d: %s", resp.ErrorCode, code.Error())
	}
	if resp.ErrorMessage == nil || *resp.ErrorMessage == "" {
		return err
	}
	return fmt.Errorf("%w: %s", err, quoted(*resp.ErrorMessage, secret))
}

// hide returns err's text without the secret; its chain is cut, since it may
// show what its text does not.
func hide(err error, secret string) error { return errors.New(redacted(err.Error(), secret)) }
