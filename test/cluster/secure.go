package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/IBM/sarama"

	"joiner/test/pki"
)

// The listeners of a secured cluster. Whoever comes by TLS alone is
// User:ANONYMOUS, by all others User:joiner (by MTLS the common name of its
// certificate).
const (
	ListenerTLS      = "TLS"
	ListenerMTLS     = "MTLS"
	ListenerPlain    = "PLAIN"
	ListenerSCRAM256 = "SCRAM256"
	ListenerSCRAM512 = "SCRAM512"
	ListenerOAuth    = "OAUTH"
)

// SecureUser is the user of every listener that knows one, and the client of
// the token endpoint.
const SecureUser = "joiner"

// Secure is what a cluster started with Options.Secure has more.
type Secure struct {
	// Dir holds what test/secure has made: ca.pem, client.pem, client.key,
	// password, client_secret and more.
	Dir string
	// Listeners are the bootstrap addresses by listener.
	Listeners map[string][]string
	// TokenURL is the token endpoint's, encrypted; its certificate is signed by
	// ca.pem.
	TokenURL string

	admin string // the administrator's password
}

func newSecure(env map[string]string) (*Secure, error) {
	s := &Secure{Dir: env["KAFKA_SECURE_DIR"], TokenURL: env["KAFKA_SECURE_TOKEN_URL"], Listeners: make(map[string][]string)}
	for _, l := range []string{ListenerTLS, ListenerMTLS, ListenerPlain, ListenerSCRAM256, ListenerSCRAM512, ListenerOAuth} {
		addresses := env["KAFKA_SECURE_"+l]
		if addresses == "" {
			return nil, fmt.Errorf("test/kafka/up named no listener %s", l)
		}
		s.Listeners[l] = strings.Split(addresses, ",")
	}
	password, err := os.ReadFile(s.File("admin.password"))
	if err != nil {
		return nil, err
	}
	s.admin = strings.TrimSpace(string(password))
	return s, nil
}

// File is the path of a file in Dir.
func (s *Secure) File(name string) string { return filepath.Join(s.Dir, name) }

// Config is as the function of that name, with the administrator's login where
// the cluster is a secured one.
func (c *Cluster) Config() *sarama.Config {
	config := Config()
	if c.Secure != nil {
		config.Net.SASL.Enable = true
		config.Net.SASL.Mechanism = sarama.SASLTypePlaintext
		config.Net.SASL.User, config.Net.SASL.Password = "admin", c.Secure.admin
	}
	return config
}

// ACL allows a principal (User:…) an operation on a resource of exactly that
// name, from everywhere.
type ACL struct {
	Principal string
	Type      sarama.AclResourceType
	Name      string
	Operation sarama.AclOperation
	Prefixed  bool // Name is how names begin
}

func (a ACL) pattern() sarama.AclResourcePatternType {
	if a.Prefixed {
		return sarama.AclPatternPrefixed
	}
	return sarama.AclPatternLiteral
}

func (a ACL) String() string {
	return fmt.Sprintf("%s %s %s of %s", a.Operation.String(), a.Type.String(), a.Name, a.Principal)
}

func (a ACL) resource() *sarama.ResourceAcls {
	return &sarama.ResourceAcls{
		Resource: sarama.Resource{ResourceType: a.Type, ResourceName: a.Name, ResourcePatternType: a.pattern()},
		Acls:     []*sarama.Acl{{Principal: a.Principal, Host: "*", Operation: a.Operation, PermissionType: sarama.AclPermissionAllow}},
	}
}

// Allow adds ACLs.
func (c *Cluster) Allow(t testing.TB, acls ...ACL) {
	t.Helper()
	resources := make([]*sarama.ResourceAcls, len(acls))
	for i, a := range acls {
		resources[i] = a.resource()
	}
	c.administer(t, func(admin sarama.ClusterAdmin) error { return admin.CreateACLs(resources) })
}

// Revoke takes away what Allow has given; an ACL that is not there fails the
// test.
func (c *Cluster) Revoke(t testing.TB, acls ...ACL) {
	t.Helper()
	for _, a := range acls {
		c.administer(t, func(admin sarama.ClusterAdmin) error {
			gone, err := admin.DeleteACL(sarama.AclFilter{
				ResourceType: a.Type, ResourceName: &a.Name, ResourcePatternTypeFilter: a.pattern(),
				Principal: &a.Principal, Operation: a.Operation, PermissionType: sarama.AclPermissionAllow,
			}, false)
			if err == nil && len(gone) != 1 {
				err = fmt.Errorf("%d ACLs match", len(gone))
			}
			if err != nil {
				return fmt.Errorf("taking away %s: %w", a, err)
			}
			return nil
		})
	}
}

// SetSCRAMPassword changes a user's password of both SCRAM mechanisms. It counts
// for connections made from now on.
func (c *Cluster) SetSCRAMPassword(t testing.TB, user, password string) {
	t.Helper()
	// Brokers take no two credentials of a user in one request.
	for _, mechanism := range []sarama.ScramMechanismType{sarama.SCRAM_MECHANISM_SHA_256, sarama.SCRAM_MECHANISM_SHA_512} {
		c.administer(t, func(admin sarama.ClusterAdmin) error {
			results, err := admin.UpsertUserScramCredentials([]sarama.AlterUserScramCredentialsUpsert{{
				Name: user, Mechanism: mechanism, Iterations: 4096, Salt: []byte("salt of the tests"), Password: []byte(password),
			}})
			for _, r := range results {
				if !errors.Is(r.ErrorCode, sarama.ErrNoError) {
					err = errors.Join(err, r.ErrorCode)
				}
			}
			return err
		})
	}
}

// SetPlainPassword changes the user's password of PLAIN, which a broker reads
// when it starts. It may hold letters and digits only.
func (c *Cluster) SetPlainPassword(t testing.TB, user, password string) {
	t.Helper()
	entry := regexp.MustCompile(`user_` + regexp.QuoteMeta(user) + `="[^"]*"`)
	files, err := filepath.Glob(filepath.Join(c.Dir, "[1-9]", "server.properties"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !entry.Match(text) {
			t.Fatalf("%s has no user %s", file, user)
		}
		if err := pki.Replace(file, entry.ReplaceAll(text, fmt.Appendf(nil, `user_%s="%s"`, user, password))); err != nil {
			t.Fatal(err)
		}
	}
}

// SetClientSecret changes the client's secret at the token endpoint, at once.
func (c *Cluster) SetClientSecret(t testing.TB, client, secret string) {
	t.Helper()
	if err := pki.Replace(c.Secure.File("clients"), []byte(client+" "+secret+"\n")); err != nil {
		t.Fatal(err)
	}
}

// SetBrokerCertificate gives the brokers a certificate of this authority, which
// they read when they start; the token endpoint shows it at once. The clients'
// certificates are still those of the first authority.
func (c *Cluster) SetBrokerCertificate(t testing.TB, authority *pki.Authority) {
	t.Helper()
	pair, err := authority.Issue(pki.Request{Name: "broker", Hosts: []string{"127.0.0.1", "localhost"}})
	if err == nil {
		err = errors.Join(
			pair.Write(c.Secure.File("broker.pem"), c.Secure.File("broker.key")),
			pki.Replace(c.Secure.File("keystore.pem"), append(pair.Key, pair.Cert...)),
		)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (c *Cluster) administer(t testing.TB, do func(sarama.ClusterAdmin) error) {
	t.Helper()
	admin, err := sarama.NewClusterAdmin(c.Brokers, c.Config())
	if err != nil {
		t.Fatalf("connecting to %v: %v", c.Brokers, err)
	}
	defer func() { _ = admin.Close() }()
	if err := do(admin); err != nil {
		t.Fatal(err)
	}
}
