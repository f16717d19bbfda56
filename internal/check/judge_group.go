package check

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"joiner/internal/assign"
	"joiner/internal/kafka"
	"joiner/internal/wire"
)

func (j *judgement) groupName() string { return "group " + j.Kafka.GroupID }

// group returns the group, or the finding that it cannot be had.
func (j *judgement) group() (kafka.Group, *Finding) {
	name := j.groupName()
	if err := j.facts.Connected; err != nil {
		hidden := unseen(name, "", "", err)
		return kafka.Group{}, &hidden
	}
	if err := j.facts.GroupErr; err != nil {
		hidden := unseen(name, "Describe", name, err)
		return kafka.Group{}, &hidden
	}
	return j.facts.Group, nil
}

// members returns the group with what its members say of themselves, or the
// finding that this cannot be had: while a group rebalances, coordinators
// describe members without it.
func (j *judgement) members() (kafka.Group, *Finding) {
	g, hidden := j.group()
	if hidden == nil && rebalances(g) {
		f := rebalancing(j.groupName(), g)
		hidden = &f
	}
	return g, hidden
}

// joiners is members, where those that are joiners can be told.
func (j *judgement) joiners() (kafka.Group, *Finding) {
	g, hidden := j.members()
	if hidden == nil && j.plainData(g) && slices.ContainsFunc(g.Members, func(m kafka.GroupMember) bool { return !assign.Inspect(m.UserData).Joiner }) {
		f := notSeen(j.groupName(), "look again once the group has changed over to "+j.Strategy,
			"could not be looked at: under %s a joiner looks like any other consumer", g.Protocol)
		hidden = &f
	}
	return g, hidden
}

func rebalances(g kafka.Group) bool {
	return len(g.Members) > 0 && g.Type == kafka.ClassicGroup && g.State != "Stable"
}

func rebalancing(name string, g kafka.Group) Finding {
	return notSeen(name, "look again once it is stable", "could not be looked at: the group is rebalancing (%s)", g.State)
}

// protocolName is the strategy's name in the group.
func protocolName(strategy string) string {
	if strategy == assign.Copartition {
		return assign.ProtocolName
	}
	return strategy
}

func judgeGroupProtocol(j *judgement) []Finding {
	g, hidden := j.group()
	if hidden != nil {
		return []Finding{*hidden}
	}
	name := j.groupName()
	const other = "set group.id to a name that nobody else uses, or stop the others"
	switch {
	case len(g.Members) == 0:
		return []Finding{ok(name, "has no members")}
	case g.Type == kafka.ConsumerGroup:
		return []Finding{fail(name, other, "%s in it speak the newer group protocol (KIP-848), in which the brokers assign: joiner cannot join", count(len(g.Members), "member"))}
	case g.ProtocolType != "consumer":
		return []Finding{fail(name, other, "is of another kind: protocol type %q, not consumer", g.ProtocolType)}
	case rebalances(g):
		return []Finding{rebalancing(name, g)}
	case g.Protocol == protocolName(j.Strategy):
		return []Finding{ok(name, "%s with %s", count(len(g.Members), "member"), g.Protocol)}
	}
	for _, from := range j.UpgradeFrom {
		if g.Protocol == protocolName(from) {
			return []Finding{ok(name, "%s with %s, which group.upgrade_from names", count(len(g.Members), "member"), g.Protocol)}
		}
	}
	if s := strategyNamed(g.Protocol); s != "" {
		return []Finding{fail(name, fmt.Sprintf("set group.strategy: %s, or name it in group.upgrade_from while the group changes over", s),
			"uses %s: a member that speaks %s alone is refused", g.Protocol, protocolName(j.Strategy))}
	}
	return []Finding{fail(name, other, "uses %q, which joiner does not speak: joining is refused", g.Protocol)}
}

// strategyNamed is the strategy of ours that has that name in a group, if any.
func strategyNamed(protocol string) string {
	for _, s := range assign.Strategies() {
		if protocolName(s) == protocol {
			return s
		}
	}
	return ""
}

// judgeGroupMembers finds those that have other topics in mind, or are no
// joiners.
func judgeGroupMembers(j *judgement) []Finding {
	g, hidden := j.members()
	if hidden != nil {
		return []Finding{*hidden}
	}
	want := slices.Sorted(slices.Values(j.inputs()))
	var findings []Finding
	for _, m := range g.Members {
		topics := slices.Sorted(slices.Values(m.Topics))
		who := "member " + member(m)
		foreign := g.Type == kafka.ClassicGroup && m.Err == nil && !assign.Inspect(m.UserData).Joiner && !j.plainData(g)
		switch {
		case m.Err != nil:
			findings = append(findings, warn(who, "see what it is: it shares the group", "could not be looked at: %v", m.Err))
		case foreign && j.taken(m) != "":
			findings = append(findings, fail(who, "stop it, or give every application a group.id of its own", "is no joiner, and takes %s: what lies there is not joined", j.taken(m)))
		case len(topics) > 0 && !slices.Equal(topics, want):
			findings = append(findings, warn(who, "give every application a group.id of its own; where topics are being renamed, go on",
				"is subscribed to %s, and this configuration reads %s", strings.Join(topics, ", "), strings.Join(want, ", ")))
		case foreign:
			findings = append(findings, warn(who, "give every application a group.id of its own", "is no joiner: what it owns is not joined"))
		}
	}
	if len(g.Members) == 0 {
		return []Finding{ok(j.groupName(), "has no members")}
	}
	switch {
	case len(findings) > 0:
		return findings
	case g.Type == kafka.ConsumerGroup:
		return []Finding{warn(j.groupName(), "see group_protocol", "%s of these topics, none of them a joiner", count(len(g.Members), "member"))}
	}
	if _, hidden := j.joiners(); hidden != nil {
		return []Finding{*hidden}
	}
	return []Finding{ok(j.groupName(), "%s, all of them joiners of these topics", count(len(g.Members), "member"))}
}

// taken names the partitions of the inputs that a member has; empty: none.
func (j *judgement) taken(m kafka.GroupMember) string {
	var list []string
	for _, topic := range j.inputs() {
		if ids := m.Assigned[topic]; len(ids) > 0 {
			list = append(list, fmt.Sprintf("%s of %s", numbered("partition", slices.Clone(ids)), topic))
		}
	}
	return strings.Join(list, " and ")
}

// plainData tells whether joiners too may send another strategy's data: while
// the group changes over from sticky.
func (j *judgement) plainData(g kafka.Group) bool {
	return g.Protocol == assign.Sticky && slices.Contains(j.UpgradeFrom, assign.Sticky)
}

func member(m kafka.GroupMember) string {
	if m.Instance != "" {
		return m.Instance
	}
	return fmt.Sprintf("%s at %s", m.ID, strings.TrimPrefix(m.Host, "/"))
}

func judgeGroupRelease(j *judgement) []Finding {
	g, hidden := j.joiners()
	if hidden != nil {
		return []Finding{*hidden}
	}
	var findings []Finding
	joiners := 0
	for _, m := range g.Members {
		seen := assign.Inspect(m.UserData)
		if !seen.Joiner {
			continue
		}
		joiners++
		switch who := "member " + member(m); {
		case seen.Format != wire.FormatVersion:
			findings = append(findings, warn(who, "finish the upgrade: until then that member keeps what it has, and gets nothing new",
				"is of another release: it writes format %d, this one %d", seen.Format, wire.FormatVersion))
		case seen.Err != nil:
			findings = append(findings, warn(who, "restart that member; report it where that does not help", "what it tells the group cannot be read: %v", seen.Err))
		}
	}
	if joiners == 0 {
		return []Finding{ok(j.groupName(), "has no joiner in it")}
	}
	if len(findings) == 0 {
		return []Finding{ok(j.groupName(), "%s, all of format %d", count(joiners, "joiner"), wire.FormatVersion)}
	}
	return findings
}

// judgeStatic looks at what a member does when it stops and is started again.
func judgeStatic(j *judgement) []Finding {
	const key = "group.instance_id"
	id, session := j.Kafka.InstanceID, span(j.Kafka.SessionTimeout)
	if id == "" {
		if j.Leave == leaveNever {
			return []Finding{warn("group.leave", "set group.leave: auto, or a group.instance_id",
				"never, and the member is a dynamic one, which never comes back as itself: at each stop its tasks lie idle for %s", session)}
		}
		return []Finding{ok(key, "not set: the member is a dynamic one, which leaves the group when it stops")}
	}
	findings := j.fixedAddress()
	if err := j.facts.ComesBackErr; err != nil {
		findings = append(findings, warn("group.leave", "let the pod's service account get its StatefulSet (docs/operations.md), or set group.leave to always or never",
			"auto cannot tell whether the pod comes back: when it goes for good, its tasks lie idle for %s: %v", session, err))
	}
	if len(findings) > 0 {
		return findings
	}
	said := fmt.Sprintf("%s: the tasks are its own for %s after a stop", id, session)
	if j.facts.ComesBack != "" {
		said = fmt.Sprintf("%s: %s", id, j.facts.ComesBack)
	}
	return []Finding{ok(key, "%s", said)}
}

// leaveNever is that of group.leave.
const leaveNever = "never"

// fixedAddress finds an address that may be another one after a restart, of
// which the others then hear by a rebalance.
func (j *judgement) fixedAddress() []Finding {
	const key, remedy = "peer.advertise", "set peer.advertise to a name that the pod keeps, such as its own under a headless service, and peer.listen to a fixed port"
	host, port, err := net.SplitHostPort(j.Advertised)
	switch {
	case err != nil: // peer_advertise says so
		return nil
	case port == "0":
		return []Finding{warn(key, remedy, "the port is another one after each restart, which then costs a rebalance")}
	case !j.AddressSet && net.ParseIP(host) != nil:
		return []Finding{warn(key, remedy, "not set, and %s may be another pod's after a restart, which then costs a rebalance", j.Advertised)}
	}
	return nil
}

// judgeStateDir looks at the directory for checkpoints on this machine, which may
// be another one than the pods'.
func judgeStateDir(j *judgement) []Finding {
	const key = "state.dir"
	at := j.facts.Place
	switch err := j.facts.PlaceErr; {
	case j.StateDir == "":
		return []Finding{ok(key, "not set: there is no directory to look at")}
	case err != nil && at.Missing:
		return []Finding{warn(key, "make it, or mount the volume, for the user that joiner runs as; where pods run elsewhere, look there",
			"%s is not there and cannot be made: no checkpoint would be written here, joins go on: %v", j.StateDir, err)}
	case err != nil:
		return []Finding{warn(key, "name a directory that the user whom joiner runs as may write to; where pods run elsewhere, look there",
			"%s cannot be used: no checkpoint would be written here, joins go on: %v", j.StateDir, err)}
	case at.Held:
		return []Finding{warn(key, "give each pod a directory of its own; where it is this pod's own joiner that has it, all is well",
			"another process has %s: a second one waits for it, and then ends with exit code 1", j.StateDir)}
	case at.Missing:
		return []Finding{ok(key, "%s is not there yet, and can be made", j.StateDir)}
	}
	return []Finding{ok(key, "%s can be written to", j.StateDir)}
}

func judgeReplicas(j *judgement) []Finding {
	m, hidden := j.layout(j.market())
	if hidden != nil {
		return []Finding{*hidden}
	}
	n, hidden := j.layout(j.notifications())
	if hidden != nil {
		return []Finding{*hidden}
	}
	partitions := min(int(m.Topic.Partitions), int(n.Topic.Partitions))
	const remedy = "run as many as there are partitions, or grow both inputs (which places symbols anew); spares take over when somebody goes"
	if j.Replicas > partitions {
		return []Finding{warn("--replicas", remedy, "%s for %s: %d idle", count(j.Replicas, "replica"), count(partitions, "partition"), j.Replicas-partitions)}
	}
	g, hidden := j.group()
	if hidden != nil {
		return []Finding{*hidden}
	}
	if has := len(g.Members); has > partitions {
		return []Finding{warn(j.groupName(), remedy, "%s for %s: %d idle", count(has, "member"), count(partitions, "partition"), has-partitions)}
	}
	runs := max(j.Replicas, len(g.Members))
	if runs == 0 {
		return []Finding{ok(j.groupName(), "up to %s have work; none runs yet", count(partitions, "replica"))}
	}
	return []Finding{ok(j.groupName(), "%s for %s", count(runs, "replica"), count(partitions, "partition"))}
}

func judgeAdvertise(j *judgement) []Finding {
	const key, remedy = "peer.advertise", "set peer.advertise to the name or address under which other pods reach this one"
	several := j.Replicas > 1 || j.Replicas == 0 && len(j.facts.Group.Members) > 1
	host, _, err := net.SplitHostPort(j.Advertised)
	switch {
	case j.Advertised == "" || err != nil:
		return []Finding{warn(key, remedy, "this machine has no address but loopback: other pods cannot ask this one")}
	case several && loopback(host):
		return []Finding{warn(key, remedy, "%s is reached from this machine alone, and there are several replicas", j.Advertised)}
	}
	findings := j.memberAddresses()
	if !j.dialled(j.Advertised) {
		findings = append(findings, warn(key, dialRemedy, "%s is not among peer.allowed_names: pods of this configuration do not ask there", j.Advertised))
	}
	if len(findings) == 0 {
		return []Finding{ok(key, "%s", j.Advertised)}
	}
	return findings
}

const dialRemedy = "add the host, or a pattern for it, to peer.allowed_names; or correct peer.advertise"

// dialled tells whether pods of this configuration ask at an address.
func (j *judgement) dialled(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err != nil || j.Dialled == nil || j.Dialled(host)
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && (ip.IsLoopback() || ip.IsUnspecified())
}

// memberAddresses finds members that advertise one address, so that questions
// for the one reach the other, and members that nobody will ask.
func (j *judgement) memberAddresses() []Finding {
	g, hidden := j.joiners()
	if hidden != nil {
		return []Finding{*hidden}
	}
	first := make(map[string]string)
	var findings []Finding
	for _, m := range g.Members {
		at := assign.Inspect(m.UserData).Identity.Address
		if at == "" {
			continue
		}
		if other, taken := first[at]; taken {
			findings = append(findings, warn("member "+member(m), "set peer.advertise apart in each pod", "advertises %s, and so does %s", at, other))
		}
		first[at] = member(m)
		if !j.dialled(at) {
			findings = append(findings, warn("member "+member(m), dialRemedy, "advertises %s, which is not among peer.allowed_names: pods of this configuration do not ask there", at))
		}
	}
	return findings
}
