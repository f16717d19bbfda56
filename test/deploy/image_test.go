package deploy

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"joiner/internal/config"
)

// The user of the image is a number, not root's, and the one that the chart runs
// pods as: a volume belongs to whom either of them says.
func TestImageUserIsTheCharts(t *testing.T) {
	m := regexp.MustCompile(`(?m)^USER (\d+):(\d+)$`).FindStringSubmatch(read(t, "Dockerfile"))
	if m == nil {
		t.Fatal("the Dockerfile names no user and group by number")
	}
	var values struct {
		Pod struct {
			NonRoot bool `yaml:"runAsNonRoot"`
			User    int  `yaml:"runAsUser"`
			Group   int  `yaml:"runAsGroup"`
			FSGroup int  `yaml:"fsGroup"`
		} `yaml:"podSecurityContext"`
		Container struct {
			ReadOnly bool `yaml:"readOnlyRootFilesystem"`
		} `yaml:"securityContext"`
	}
	parse(t, "deploy/helm/values.yaml", &values)
	user, group := strconv.Itoa(values.Pod.User), strconv.Itoa(values.Pod.Group)
	if m[1] == "0" || m[1] != user || m[2] != group || values.Pod.FSGroup != values.Pod.Group {
		t.Errorf("the image runs as %s:%s, the chart as %s:%s with files of %d", m[1], m[2], user, group, values.Pod.FSGroup)
	}
	if !values.Pod.NonRoot || !values.Container.ReadOnly {
		t.Errorf("the chart does not insist: %+v", values)
	}
}

// The ports that the image tells of are those that joiner listens on.
func TestImageExposesWhatListens(t *testing.T) {
	c := config.Default()
	want := "EXPOSE " + strings.TrimPrefix(c.HTTP.Listen, ":") + " " + strings.TrimPrefix(c.Peer.Listen, ":")
	if !strings.Contains(read(t, "Dockerfile"), "\n"+want+"\n") {
		t.Errorf("the Dockerfile has no %q", want)
	}
}

// Where the builder sets an argument by itself, a default in the stage would win.
func TestImageLeavesThePlatformToTheBuilder(t *testing.T) {
	text := read(t, "Dockerfile")
	for _, name := range []string{"TARGETOS", "TARGETARCH", "TARGETVARIANT"} {
		if !strings.Contains(text, "\nARG "+name+"\n") {
			t.Errorf("the Dockerfile does not take %s as it is", name)
		}
	}
	for _, want := range []string{"--platform=${BUILDPLATFORM", "CGO_ENABLED=0", `GOARCH="${TARGETARCH}"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the Dockerfile has no %s", want)
		}
	}
}
