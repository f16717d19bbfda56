package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/IBM/sarama"
)

// Layout is a topic with the state of its partitions.
type Layout struct {
	Topic
	Partitions []PartitionLayout // by number
	Rights     Rights            // on the topic
}

// PartitionLayout says where one partition lies.
type PartitionLayout struct {
	ID       int32
	Leader   int32   // -1: none
	Replicas []int32 // broker ids
	InSync   []int32 // those that have all acknowledged records
	Offline  []int32
}

// Layouts returns the topics of these names, all of them, with their
// partitions and what we may do to them. Faults that time heals are tried
// again until ctx ends.
func (f *Facts) Layouts(ctx context.Context, names ...string) (map[string]Layout, error) {
	layouts := make(map[string]Layout, len(names))
	if len(names) == 0 {
		return layouts, nil // an empty request would mean all topics
	}
	names = slices.Clone(names) // a request may outlive this call
	resp, err := atAny(ctx, f, "topic metadata", names, func(b *sarama.Broker) (*sarama.MetadataResponse, error) {
		req := sarama.NewMetadataRequest(f.client.Config().Version, names)
		req.IncludeTopicAuthorizedOperations = true
		resp, err := b.GetMetadata(req)
		if err != nil {
			return nil, err
		}
		return resp, settled(resp)
	})
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		layouts[name] = Layout{Topic: Topic{Name: name}}
	}
	for _, t := range resp.Topics {
		layouts[t.Name] = layoutOf(t)
	}
	return layouts, nil
}

func layoutOf(t *sarama.TopicMetadata) Layout {
	l := Layout{Topic: topicOf(t)}
	if l.Err != nil || !l.Exists() {
		return l
	}
	l.Rights = rightsOf(t.TopicAuthorizedOperations)
	for _, p := range t.Partitions {
		l.Partitions = append(l.Partitions, PartitionLayout{
			ID: p.ID, Leader: p.Leader, Replicas: p.Replicas, InSync: p.Isr, Offline: p.OfflineReplicas,
		})
	}
	slices.SortFunc(l.Partitions, func(a, b PartitionLayout) int { return int(a.ID) - int(b.ID) })
	return l
}

// Settings is the whole configuration of a topic or a broker, as text.
type Settings struct {
	Values map[string]string
	Err    error // why there is none: a missing right or topic
}

// TopicSettings returns the configurations of these topics, all of them.
// Faults that time heals are tried again until ctx ends.
func (f *Facts) TopicSettings(ctx context.Context, names ...string) (map[string]Settings, error) {
	return f.settings(ctx, sarama.TopicResource, names)
}

func (f *Facts) settings(ctx context.Context, kind sarama.ConfigResourceType, names []string) (map[string]Settings, error) {
	out := make(map[string]Settings, len(names))
	if len(names) == 0 {
		return out, nil
	}
	names = slices.Clone(names) // a request may outlive this call
	resp, err := atAny(ctx, f, "configurations", nil, func(b *sarama.Broker) (*sarama.DescribeConfigsResponse, error) {
		return b.DescribeConfigs(settingsRequest(kind, names))
	})
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		out[name] = Settings{Err: sarama.ErrIncompleteResponse}
	}
	for _, r := range resp.Resources {
		out[r.Name] = settingsOf(r)
	}
	return out, nil
}

func settingsRequest(kind sarama.ConfigResourceType, names []string) *sarama.DescribeConfigsRequest {
	req := &sarama.DescribeConfigsRequest{Version: 4}
	for _, name := range names {
		req.Resources = append(req.Resources, &sarama.ConfigResource{Type: kind, Name: name})
	}
	return req
}

func settingsOf(r *sarama.ResourceResponse) Settings {
	if err := sarama.KError(r.ErrorCode); err != sarama.ErrNoError {
		return Settings{Err: err}
	}
	s := Settings{Values: make(map[string]string, len(r.Configs))}
	for _, e := range r.Configs {
		if !e.Sensitive {
			s.Values[e.Name] = e.Value
		}
	}
	return s
}

// TryCreate asks the brokers whether they would create a topic, without having
// them do it. A topic that exists already is no error.
func (f *Facts) TryCreate(ctx context.Context, name string, partitions int32, replicas int16) error {
	_, err := within(ctx, func() (struct{}, error) {
		a, err := sarama.NewClusterAdminFromClient(f.client) // closing it would close the client
		if err != nil {
			return struct{}{}, err
		}
		return struct{}{}, a.CreateTopic(name, &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: replicas}, true)
	})
	if errors.Is(err, sarama.ErrTopicAlreadyExists) {
		return nil
	}
	return err
}

// The types of groups.
const (
	ClassicGroup  = "classic"
	ConsumerGroup = "consumer" // the newer protocol, whose assignments the brokers make (KIP-848)
)

// Group is a consumer group as its coordinator shows it.
type Group struct {
	Type         string // "" where there is no such group
	State        string
	ProtocolType string // "consumer" for consumers, whichever their Type
	Protocol     string // the strategy in use; of a ConsumerGroup the brokers' assignor
	Members      []GroupMember
	Rights       Rights
}

// GroupMember is one member of a Group.
type GroupMember struct {
	ID, Instance, ClientID, Host string
	Topics                       []string           // subscribed
	UserData                     []byte             // what it told its strategy's leader
	Assigned                     map[string][]int32 // partitions, by topic
	AssignmentData               []byte             // what the leader sent it beside them
	Err                          error              // why Topics and UserData could not be read
}

// DescribeGroup returns the clients' group. A group that nobody has used is no
// error. Faults that time heals are tried again until ctx ends.
func (c *Clients) DescribeGroup(ctx context.Context) (Group, error) {
	var d *sarama.GroupDescription
	id := c.opts.GroupID
	err := c.faults.again(ctx, "describing the group", func(ctx context.Context) error {
		resp, err := atCoordinator(ctx, c.Admin, id, func(b *sarama.Broker) (*sarama.DescribeGroupsResponse, error) {
			return b.DescribeGroups(&sarama.DescribeGroupsRequest{Version: 5, Groups: []string{id}, IncludeAuthorizedOperations: true})
		})
		if err != nil {
			return err
		}
		if len(resp.Groups) != 1 {
			return sarama.ErrIncompleteResponse
		}
		d = resp.Groups[0]
		if d.Err != sarama.ErrNoError && d.Err != sarama.ErrGroupIDNotFound {
			return c.lookUpAfter(ctx, id, d.Err)
		}
		return nil
	})
	if err != nil {
		return Group{}, err
	}
	return groupOf(d), nil
}

// deadGroup is how a coordinator describes a group of which it knows nothing,
// and one of another type.
const deadGroup = "Dead"

func groupOf(d *sarama.GroupDescription) Group {
	g := Group{
		Type: ClassicGroup, State: d.State, ProtocolType: d.ProtocolType, Protocol: d.Protocol,
		Rights: rightsOf(d.AuthorizedOperations),
	}
	if d.Err == sarama.ErrGroupIDNotFound || d.State == deadGroup {
		g.Type = ""
	}
	for _, id := range slices.Sorted(maps.Keys(d.Members)) {
		g.Members = append(g.Members, groupMember(d.Members[id]))
	}
	return g
}

func groupMember(d *sarama.GroupMemberDescription) GroupMember {
	m := GroupMember{ID: d.MemberId, ClientID: d.ClientId, Host: d.ClientHost}
	if d.GroupInstanceId != nil {
		m.Instance = *d.GroupInstanceId
	}
	meta, err := d.GetMemberMetadata()
	if err != nil {
		m.Err = fmt.Errorf("member %s: %w", d.MemberId, err)
		return m
	}
	if meta != nil {
		m.Topics, m.UserData = meta.Topics, meta.UserData
	}
	// One that cannot be read says nothing of the member itself.
	if a, err := d.GetMemberAssignment(); err == nil && a != nil {
		m.Assigned, m.AssignmentData = a.Topics, a.UserData
	}
	return m
}

// apiConsumerGroupDescribe is Kafka's number of the request.
const apiConsumerGroupDescribe = 69

// NewerGroup returns the survey's group where it is of the newer protocol, and
// a group without a type where it is not. broker is any broker's visit: one
// that does not know the request has no such groups.
func (s *Survey) NewerGroup(ctx context.Context, broker Visit, coordinator string) (Group, error) {
	if _, known := broker.APIs[apiConsumerGroupDescribe]; !known {
		return Group{}, nil
	}
	return within(ctx, func() (Group, error) { return s.newerGroup(coordinator) })
}

func (s *Survey) newerGroup(coordinator string) (Group, error) {
	// The request is younger than what the service speaks.
	b, err := s.open(coordinator, sarama.V4_0_0_0)
	if err != nil {
		return Group{}, err
	}
	defer func() { _ = b.Close() }()
	req := sarama.NewConsumerGroupDescribeRequest(sarama.V4_0_0_0)
	req.GroupIDs = []string{s.opts.GroupID}
	resp, err := b.ConsumerGroupDescribe(req)
	if err != nil {
		return Group{}, err
	}
	if len(resp.Groups) != 1 {
		return Group{}, sarama.ErrIncompleteResponse
	}
	d := resp.Groups[0]
	switch d.ErrorCode {
	case sarama.ErrNoError:
	case sarama.ErrGroupIDNotFound:
		return Group{}, nil
	default:
		return Group{}, d.ErrorCode
	}
	g := Group{Type: ConsumerGroup, State: d.GroupState, ProtocolType: "consumer", Protocol: d.AssignorName}
	for _, m := range d.Members {
		g.Members = append(g.Members, GroupMember{ID: m.MemberID, ClientID: m.ClientID, Host: m.ClientHost, Topics: m.SubscribedTopicNames})
	}
	return g, nil
}

// GroupCoordinator returns the address of the broker that coordinates the
// clients' group.
func (c *Clients) GroupCoordinator(ctx context.Context) (string, error) {
	return within(ctx, func() (string, error) {
		b, err := c.Admin.Coordinator(c.opts.GroupID)
		if err != nil {
			return "", err
		}
		return b.Addr(), nil
	})
}

// TryTransaction finds out whether a transactional id may be used, without
// using it: it asks to end a transaction of a producer that does not exist,
// which a broker refuses for that reason only after it has looked at the
// rights. The error is TRANSACTIONAL_ID_AUTHORIZATION_FAILED where a right is
// missing (Describe to find the coordinator, Write to use it).
func (c *Clients) TryTransaction(ctx context.Context, id string) error {
	return c.faults.again(ctx, "asking about a transactional id", func(ctx context.Context) error {
		_, err := within(ctx, func() (struct{}, error) { return struct{}{}, c.tryTransaction(id) })
		return err
	})
}

func (c *Clients) tryTransaction(id string) error {
	b, err := c.Admin.TransactionCoordinator(id)
	if err != nil {
		return err
	}
	resp, err := b.EndTxn(&sarama.EndTxnRequest{Version: 1, TransactionalID: id, ProducerID: 0, ProducerEpoch: 0})
	if err != nil {
		_ = b.Close()
		_ = c.Admin.RefreshTransactionCoordinator(id)
		return err
	}
	switch resp.Err {
	case sarama.ErrNoError, sarama.ErrInvalidProducerIDMapping, sarama.ErrInvalidProducerEpoch, sarama.ErrInvalidTxnState:
		return nil
	}
	return resp.Err
}
