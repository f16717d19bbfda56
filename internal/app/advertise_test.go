package app

import (
	"testing"

	"joiner/internal/config"
)

func TestAdvertised(t *testing.T) {
	for _, c := range []struct{ listen, advertise, want string }{
		{"10.1.2.3:8081", "", "10.1.2.3:8081"},
		{":8081", "joiner-0.joiner", "joiner-0.joiner:8081"},
		{":8081", "joiner-0.joiner:9000", "joiner-0.joiner:9000"},
		{"[::1]:8081", "", "[::1]:8081"},
		{"nonsense", "", ""},
	} {
		if got := Advertised(config.Peer{Listen: c.listen, Advertise: c.advertise}); got != c.want {
			t.Errorf("listen %q, advertise %q: %q, want %q", c.listen, c.advertise, got, c.want)
		}
	}
	if got, first := Advertised(config.Peer{Listen: ":8081"}), firstAddress(); first != "" && got != first+":8081" {
		t.Errorf("any address: %q, want %s:8081", got, first)
	}
}
