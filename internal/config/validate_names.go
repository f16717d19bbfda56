package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// addresses checks everything that is dialled or listened on.
func (f *checker) addresses() {
	if len(f.config.Kafka.Brokers) == 0 {
		f.add("kafka.brokers", "no broker is named", "list at least one host:port")
	}
	for _, broker := range f.config.Kafka.Brokers {
		if what, cure := wrongBroker(broker); what != "" {
			f.add("kafka.brokers", what, cure)
		}
	}
	f.listener("http.listen", f.config.HTTP.Listen, false)
	f.listener("http.pprof_listen", f.config.HTTP.PprofListen, true)
	f.listener("peer.listen", f.config.Peer.Listen, false)
	f.advertised()
	f.tokenURL()
}

func wrongBroker(broker string) (what, cure string) {
	cure = "write host:port, such as kafka-0.kafka:9092"
	if broker == "" {
		return "an entry is empty", cure
	}
	if strings.Contains(broker, "://") {
		return fmt.Sprintf("%q is a URL", broker), cure
	}
	host, port, err := net.SplitHostPort(broker)
	switch {
	case err != nil:
		return fmt.Sprintf("%q is not host:port", broker), cure
	case !plausibleHost(host):
		return fmt.Sprintf("%q has no proper host", broker), cure
	case !validPort(port) || port == "0":
		return fmt.Sprintf("%q has no proper port", broker), "write a port from 1 to 65535"
	}
	return "", ""
}

// listener checks an address to listen on. Port 0 takes any free one.
func (f *checker) listener(key, address string, optional bool) {
	if address == "" && optional {
		return
	}
	host, port, err := net.SplitHostPort(address)
	if err == nil && (host == "" || plausibleHost(host)) && validPort(port) {
		return
	}
	f.add(key, fmt.Sprintf("%q is not an address to listen on", address), "write host:port or :port, such as :8080")
}

func (f *checker) advertised() {
	address := f.config.Peer.Advertise
	if address == "" || plausibleHost(address) {
		return
	}
	host, port, err := net.SplitHostPort(address)
	if err == nil && plausibleHost(host) && validPort(port) && port != "0" {
		return
	}
	f.add("peer.advertise", fmt.Sprintf("%q is neither a host nor host:port", address), "write the name or address under which other pods reach this one")
}

func (f *checker) tokenURL() {
	text := f.config.Kafka.SASL.TokenURL
	if text == "" {
		return
	}
	const key, cure = "kafka.sasl.token_url", "write an address such as https://login.example.com/oauth2/token"
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https"):
		f.add(key, "is not an http or https address", cure)
	case u.User != nil:
		f.add(key, "holds a user, which would be shown", "give kafka.sasl.client_id and client_secret_file instead")
	}
}

// plausibleHost accepts names and addresses, IPv6 without its brackets. Names
// are for the resolver to judge; what could not be one is refused here.
func plausibleHost(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return host != "" && !strings.ContainsAny(host, " \t\r\n:/@,[]%\"'")
}

// plausibleHosts also accepts what stands for several: a star for what comes
// before the first dot, a range of addresses. It accepts nothing that whoever
// goes by the list would refuse: a test of internal/app holds it to that.
func plausibleHosts(entry string) bool {
	if _, err := netip.ParsePrefix(entry); err == nil {
		return true
	}
	rest := strings.TrimPrefix(entry, "*.")
	return plausibleHost(rest) && !strings.Contains(rest, "*")
}

func validPort(port string) bool {
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && strconv.FormatUint(n, 10) == port
}

// names checks what Kafka has rules for.
func (f *checker) names() {
	f.topics()
	k, g := f.config.Kafka, f.config.Group
	if k.ClientID == "" {
		f.add("kafka.client_id", "is empty", "write a name, such as joiner")
	}
	if what := wrongVersion(k.Version); what != "" {
		f.add("kafka.version", what, "write auto, or a version such as 3.9.0")
	}
	if g.ID == "" {
		f.add("group.id", "is empty", "write a name, such as joiner")
	}
	if g.InstanceID != "" {
		if what := wrongKafkaName(g.InstanceID); what != "" {
			f.add("group.instance_id", what, kafkaNameCure)
		}
	}
	f.upgradeFrom()
	for _, name := range f.config.Peer.AllowedNames {
		if !plausibleHosts(name) {
			f.add("peer.allowed_names", fmt.Sprintf("%q is not the name of a host", name),
				"list host names or addresses without ports; *.pods.example for all below it, 10.0.0.0/8 for a range")
		}
	}
}

const kafkaNameCure = "use 1 to 249 of a-z, A-Z, 0-9, dot, underscore and hyphen"

const kafkaNameRunes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"

// wrongKafkaName applies the rules that Kafka has for topics and for group
// instance ids (org.apache.kafka.common.internals.Topic).
func wrongKafkaName(name string) string {
	switch {
	case name == "":
		return "is empty"
	case len(name) > 249:
		return fmt.Sprintf("a name of %d bytes is too long", len(name))
	case name == "." || name == "..":
		return fmt.Sprintf("%q is no name", name)
	}
	for _, r := range name {
		if !strings.ContainsRune(kafkaNameRunes, r) {
			return fmt.Sprintf("%q holds a character that Kafka does not allow", name)
		}
	}
	return ""
}

func (f *checker) topics() {
	t := f.config.Topics
	named := []struct{ key, topic string }{
		{"topics.market_updates", t.MarketUpdates},
		{"topics.notifications", t.Notifications},
		{"topics.enriched_alerts", t.EnrichedAlerts},
		{"topics.dead_letters", t.DeadLetters},
	}
	first := map[string]string{}
	for _, n := range named {
		if n.key == "topics.dead_letters" && n.topic == "" {
			continue // turned off
		}
		if what := wrongKafkaName(n.topic); what != "" {
			f.add(n.key, what, kafkaNameCure)
			continue
		}
		if other, twice := first[n.topic]; twice {
			f.add(n.key, fmt.Sprintf("%s is also %s", n.topic, other), "name four different topics: what is written to an input would be read again")
			continue
		}
		first[n.topic] = n.key
	}
}

// oldestVersion is the first whose brokers give topics an id (KIP-516); what
// else is asked of them is older.
func oldestVersion() [3]uint64 { return [3]uint64{2, 8, 0} }

func wrongVersion(text string) string {
	if text == VersionAuto {
		return ""
	}
	parts, oldest := strings.Split(text, "."), oldestVersion()
	if len(parts) != len(oldest) {
		return fmt.Sprintf("%q is not a version", text)
	}
	var version [3]uint64
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 16)
		if err != nil {
			return fmt.Sprintf("%q is not a version", text)
		}
		version[i] = n
	}
	if slices.Compare(version[:], oldest[:]) < 0 {
		return text + " is older than 2.8.0, the first that names topics by id"
	}
	return ""
}

func (f *checker) upgradeFrom() {
	seen := map[string]bool{}
	for _, strategy := range f.config.Group.UpgradeFrom {
		if strategy == f.config.Group.Strategy {
			f.add("group.upgrade_from", strategy+" is group.strategy itself", "list only the strategies that the group comes from")
		}
		if seen[strategy] {
			f.add("group.upgrade_from", strategy+" is listed twice", "list it once")
		}
		seen[strategy] = true
	}
}
