package app

import (
	"fmt"
	"strings"
	"testing"

	"joiner/internal/config"
	"joiner/internal/enrich"
)

// Whatever decides about prices makes checkpoints others', the decoder's version
// first; what does not leaves them alone.
func TestPriceRules(t *testing.T) {
	base := config.Default()
	if !strings.HasPrefix(priceRules(base), fmt.Sprintf("rules=%d ", enrich.MarketRules)) {
		t.Errorf("%q does not begin with the decoder's version", priceRules(base))
	}
	for name, change := range map[string]func(*config.Config){
		"market.symbol":          func(c *config.Config) { c.Market.Symbol = "s" },
		"market.price":           func(c *config.Config) { c.Market.Price = "last" },
		"market.event_time":      func(c *config.Config) { c.Market.EventTime = "at" },
		"market.event_time_unit": func(c *config.Config) { c.Market.EventTimeUnit = "s" },
		"kafka.isolation_level":  func(c *config.Config) { c.Kafka.IsolationLevel = "read_uncommitted" },
	} {
		c := base
		change(&c)
		if priceRules(c) == priceRules(base) {
			t.Errorf("%s changes nothing", name)
		}
	}
	c := base
	c.Notification.Symbol, c.Group.ID = "s", "x"
	if priceRules(c) != priceRules(base) {
		t.Error("what has nothing to do with prices changes the rules")
	}
}
