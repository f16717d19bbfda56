package kafka

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"time"

	"github.com/IBM/sarama"
)

// Survey visits brokers one by one, for a check before the service is started:
// where Clients go on as long as any broker answers, a survey wants to know
// about each. It tries everything once, and changes nothing on any broker.
type Survey struct {
	opts   Options
	dialer *conns
}

// NewSurvey makes a survey; it dials nobody yet. The error is about the
// options, as Connect's.
func NewSurvey(o Options) (*Survey, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	return &Survey{opts: o, dialer: newConns(o)}, nil
}

// Close ends every visit under way.
func (s *Survey) Close() { s.dialer.shut() }

// Visit is what one broker says of itself and of its cluster.
type Visit struct {
	ID      int32  // -1 where it was not told
	Address string // where it was visited
	Err     error  // it could not be reached, did not let us in, or did not answer

	ClusterID  string
	Controller int32
	Brokers    []BrokerAddress // of the whole cluster, as they are advertised
	// APIs are the requests that the broker knows, with the newest version, by
	// Kafka's number of the request.
	APIs map[int16]int16
	// Settings is the broker's configuration, only where its ID was told: a
	// broker answers for itself alone.
	Settings Settings
	// CertificateEnds is when the certificate that the broker showed expires;
	// zero without TLS.
	CertificateEnds time.Time
}

// BrokerAddress is a broker as clients are told to reach it.
type BrokerAddress struct {
	ID      int32
	Address string // host:port
	Rack    string
}

// visitTimeout bounds each answer of a broker that is visited: one that is
// paused takes the connection and then says nothing.
const visitTimeout = 5 * time.Second

// Visit connects to the broker at address (host:port), as the service would:
// with TLS and SASL as configured. id is the broker's number, -1 where it is
// not known. What went wrong is in the visit.
func (s *Survey) Visit(ctx context.Context, id int32, address string) Visit {
	v, err := within(ctx, func() (Visit, error) { return s.visit(id, address) })
	v.ID, v.Address, v.Err = id, address, err
	return v
}

func (s *Survey) visit(id int32, address string) (v Visit, err error) {
	b, err := s.open(address, s.version())
	if err != nil {
		return v, err
	}
	defer func() { _ = b.Close() }()
	if state, ok := b.TLSConnectionState(); ok && len(state.PeerCertificates) > 0 {
		v.CertificateEnds = state.PeerCertificates[0].NotAfter
	}
	apis, err := b.ApiVersions(&sarama.ApiVersionsRequest{Version: 3, ClientSoftwareName: "joiner", ClientSoftwareVersion: "check"})
	if err != nil {
		return v, fmt.Errorf("asking which requests it knows: %w", err)
	}
	v.APIs = make(map[int16]int16, len(apis.ApiKeys))
	for _, k := range apis.ApiKeys {
		v.APIs[k.ApiKey] = k.MaxVersion
	}
	if err := s.cluster(b, &v); err != nil {
		return v, fmt.Errorf("asking about its cluster: %w", err)
	}
	if id >= 0 {
		v.Settings = brokerSettings(b, id)
	}
	return v, nil
}

// apiDescribeCluster is Kafka's number of the request.
const apiDescribeCluster = 60

// cluster asks a broker about its cluster: by the request made for it, and by
// Metadata, as clients do, where the broker does not know it (Kafka before 2.8,
// and some that are not Apache Kafka).
func (s *Survey) cluster(b *sarama.Broker, v *Visit) error {
	if _, known := v.APIs[apiDescribeCluster]; known {
		return s.describeCluster(b, v)
	}
	// Without topics it would ask about all.
	resp, err := b.GetMetadata(sarama.NewMetadataRequest(s.version(), s.opts.Topics))
	if err != nil {
		return err
	}
	v.Controller = resp.ControllerID
	if resp.ClusterID != nil {
		v.ClusterID = *resp.ClusterID
	}
	for _, one := range resp.Brokers {
		v.Brokers = append(v.Brokers, BrokerAddress{ID: one.ID(), Address: one.Addr(), Rack: one.Rack()})
	}
	return nil
}

func (s *Survey) describeCluster(b *sarama.Broker, v *Visit) error {
	c, err := b.DescribeCluster(sarama.NewDescribeClusterRequest(s.version()))
	if err != nil {
		return err
	}
	if c.Err != sarama.ErrNoError {
		return c.Err
	}
	v.ClusterID, v.Controller = c.ClusterID, c.ControllerID
	for _, one := range c.Brokers {
		v.Brokers = append(v.Brokers, brokerAddress(one))
	}
	return nil
}

func brokerSettings(b *sarama.Broker, id int32) Settings {
	resp, err := b.DescribeConfigs(settingsRequest(sarama.BrokerResource, []string{strconv.Itoa(int(id))}))
	if err != nil {
		return Settings{Err: err}
	}
	if len(resp.Resources) != 1 {
		return Settings{Err: sarama.ErrIncompleteResponse}
	}
	return settingsOf(resp.Resources[0])
}

func brokerAddress(b *sarama.DescribeClusterBroker) BrokerAddress {
	a := BrokerAddress{ID: b.BrokerID, Address: net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))}
	if b.Rack != nil {
		a.Rack = *b.Rack
	}
	return a
}

func (s *Survey) version() sarama.KafkaVersion {
	v, _ := parseVersion(s.opts.Version) // validated by NewSurvey
	return v
}

// open returns a broker that is connected, and lets us in.
func (s *Survey) open(address string, version sarama.KafkaVersion) (*sarama.Broker, error) {
	conf := adminConfig(s.opts, s.dialer)
	conf.Version = version
	conf.Net.ReadTimeout, conf.Net.WriteTimeout = visitTimeout, visitTimeout
	b := sarama.NewBroker(address)
	if err := b.Open(conf); err != nil {
		return nil, err
	}
	if connected, err := b.Connected(); err != nil || !connected {
		_ = b.Close()
		return nil, errors.Join(err, notConnected(connected, err))
	}
	return b, nil
}

// notConnected makes up for sarama, which may say no without a reason.
func notConnected(connected bool, err error) error {
	if connected || err != nil {
		return nil
	}
	return sarama.ErrNotConnected
}

// Rights are the operations that a broker says we may do on one resource
// (KIP-430). The zero value knows nothing.
type Rights struct {
	Known bool
	bits  int32
}

// AllRights is what a cluster without an authorizer grants, for tests of
// judgement.
func AllRights() Rights { return Rights{Known: true, bits: -1 &^ math.MinInt32} }

// Without returns r less one operation, for tests of judgement.
func (r Rights) Without(op sarama.AclOperation) Rights {
	r.bits &^= 1 << op
	return r
}

// Allow tells whether the operation is allowed; false where nothing is known.
func (r Rights) Allow(op sarama.AclOperation) bool { return r.Known && r.bits&(1<<op) != 0 }

// rightsOf reads a field of authorized operations, in which brokers write the
// smallest number where they were not asked or are too old to say.
func rightsOf(bits int32) Rights {
	if bits == math.MinInt32 {
		return Rights{}
	}
	return Rights{Known: true, bits: bits}
}
