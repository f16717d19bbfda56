package app

import (
	"net"

	"joiner/internal/config"
)

// Advertised is the address that the group is told for requests between pods:
// peer.advertise, else the host in peer.listen, else the first address of this
// machine that is no loopback, with the port of peer.listen where none is
// given. It is empty where nothing of the kind is known.
func Advertised(p config.Peer) string {
	host, port, err := net.SplitHostPort(p.Listen)
	if err != nil {
		return ""
	}
	if p.Advertise != "" {
		if _, _, err := net.SplitHostPort(p.Advertise); err == nil {
			return p.Advertise
		}
		host = p.Advertise
	}
	if host == "" || net.ParseIP(host).IsUnspecified() {
		host = firstAddress()
	}
	if host == "" {
		return ""
	}
	return net.JoinHostPort(host, port)
}

// firstAddress is the first address of this machine that others can reach.
func firstAddress() string {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return ""
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	return ""
}
