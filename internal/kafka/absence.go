package kafka

import "time"

// CoordinatorAway says since when the group's coordinator has been looked for in
// vain, and why; "" where it has not.
func (c *Clients) CoordinatorAway() string {
	return c.beat.away.Load().Tell(time.Now(), "the group's coordinator has been away")
}

// missed notes that a broker takes no connection.
func (a *Access) missed(broker string, err error) {
	if a != nil {
		a.absent.Missed(broker, err)
	}
}

// reached notes that a broker takes connections.
func (a *Access) reached(broker string) {
	if a != nil {
		a.absent.Reached(broker)
	}
}

// Unreachable says which brokers take no connection, since when and why, in their
// order, as far as somebody has tried within the last half minute: at most a
// handful of them one by one.
func (a *Access) Unreachable() []string {
	if a == nil {
		return nil
	}
	return a.absent.Tell(func(broker string, _ error) string {
		return "broker " + broker + " cannot be reached"
	}, "brokers cannot be reached")
}
