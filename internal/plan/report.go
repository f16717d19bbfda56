package plan

// Report is a plan. Shares are from 0 to 1.
type Report struct {
	// Topics gives the number of partitions of the two inputs by name.
	Topics map[string]int32 `json:"topics"`
	// Load says what load the shares are of, and Placement how its keys were
	// placed.
	Load      string `json:"load"`
	Placement string `json:"placement"`
	// Hottest lists the indices with the most records, the most first; only
	// where a load was given.
	Hottest []HotPartition `json:"hottest,omitempty"`
	Steps   []Step         `json:"steps"`
	// Sizing is nil where no rates were given.
	Sizing *Sizing `json:"sizing"`
	// Histories is how many further groups the means are of; 0 where the plan
	// is so large that it was left at one.
	Histories int `json:"histories"`

	inputs [sides]string // the topics in order: market updates, notifications
}

// HotPartition is one partition index and how much of all records it gets.
type HotPartition struct {
	Partition int32   `json:"partition"`
	Share     float64 `json:"share"`
	// Symbol is its heaviest one, and SymbolShare that one's part of all
	// records.
	Symbol      string  `json:"symbol"`
	SymbolShare float64 `json:"symbol_share"`
}

// Step is the group after one event has been dealt with.
type Step struct {
	Event      string            `json:"event"`
	Members    int               `json:"members"`
	MemberIDs  []string          `json:"member_ids"`
	Strategies []StrategyOutcome `json:"strategies"`

	numbers []int
}

// StrategyOutcome is what one strategy made of a step. An index (a partition
// number of all topics together) is what is counted everywhere.
type StrategyOutcome struct {
	Name string `json:"name"`
	// Colocated of Partitions indices have one owner for both topics.
	Colocated  int `json:"colocated"`
	Partitions int `json:"partitions"`
	// Moved counts the indices of which a partition left a member that is
	// still there; no assignment that is balanced could move fewer than
	// MovedMinimum.
	Moved        int `json:"moved"`
	MovedMinimum int `json:"moved_minimum"`
	// Max and Min are the most and the fewest tasks of one member: indices of
	// which it owns a partition.
	Max int `json:"max"`
	Min int `json:"min"`
	// Idle members own nothing.
	Idle int `json:"idle"`
	// LocalShare of all notifications meet their price in the same member.
	LocalShare float64 `json:"local_share"`
	// Bottleneck is the member with the most records to do, BottleneckShare
	// its part of all records.
	Bottleneck      string  `json:"bottleneck"`
	BottleneckShare float64 `json:"bottleneck_share"`
	// BottleneckRate is in records a second at the peak, PodLoad that rate as
	// a multiple of what one member can do; both 0 where no rates were given.
	BottleneckRate float64 `json:"bottleneck_rate,omitempty"`
	PodLoad        float64 `json:"bottleneck_load,omitempty"`
	// Generations is how many rebalances it took: a cooperative strategy takes
	// a second one when something moves.
	Generations int `json:"generations"`
	// Problem is what keeps the group from being assigned in full.
	Problem string `json:"problem,omitempty"`
	// Mean is what groups of the same events but of other member ids came to
	// on average; nil without further histories.
	Mean *Mean `json:"mean,omitempty"`
	// Ownership gives each partition's owner by topic, empty for nobody.
	Ownership map[string][]string `json:"ownership"`
}

// Mean is an outcome on average.
type Mean struct {
	Colocated  float64 `json:"colocated"`
	Moved      float64 `json:"moved"`
	LocalShare float64 `json:"local_share"`
}

// Sizing says how many partitions a rate needs.
type Sizing struct {
	// PeakRate and MemberRate are what was asked: records a second of both
	// topics, in all and by one member.
	PeakRate   float64 `json:"peak_rate"`
	MemberRate float64 `json:"member_rate"`
	// PartitionsNeeded is the least number of partitions of each topic with
	// which no index alone is more than one member can do at the peak; nil
	// where no number will do, which Problem explains. A larger number need not
	// do: PartitionsTooFew are those up to PartitionsJudged that will not,
	// ascending, since the hash puts heavy symbols together there. What is
	// larger still was not looked at; 0 and nil where no number will do.
	PartitionsNeeded *int32  `json:"partitions_needed"`
	Problem          string  `json:"problem,omitempty"`
	PartitionsTooFew []int32 `json:"partitions_too_few"`
	PartitionsJudged int32   `json:"partitions_judged"`
	// PartitionsForDouble is the same for twice the peak.
	PartitionsForDouble *int32 `json:"partitions_for_double"`
	// Headroom is how much the peak could grow before the hottest of the
	// planned partitions is more than one member can do, as a part of the
	// peak: 0.5 is half as much again, below 0 it is too much already.
	Headroom float64 `json:"headroom"`
	// MembersNeeded is the least number of members that can do the peak when
	// the load is shared evenly; MembersEnough is the least number that can
	// whichever of the planned partitions each is given by copartition, null
	// where one partition alone is too much; MaxUsefulMembers is the number
	// beyond which they would be idle.
	MembersNeeded    int    `json:"members_needed"`
	MembersEnough    *int32 `json:"members_enough"`
	MaxUsefulMembers int32  `json:"max_useful_members"`
	// Growth says what more partitions would break.
	Growth *Growth `json:"growth"`
}

// Growth is what becomes of keys when both topics get more partitions.
type Growth struct {
	From map[string]int32 `json:"from"`
	To   int32            `json:"to"`
	// Symbols of the load, and how many of them would lie in another
	// market-updates partition; MovedShare is their part of the load.
	Symbols      int     `json:"symbols"`
	MovedSymbols int     `json:"moved_symbols"`
	MovedShare   float64 `json:"moved_share"`
	// Breaks says it in words.
	Breaks []string `json:"breaks"`
}
