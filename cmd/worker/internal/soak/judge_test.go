package soak

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sluice/tests/loopback"
	"sluice/workflows"
	"sluice/workflows/contract"
)

var epoch = time.Unix(1_000_000, 0)

func at(d time.Duration) time.Time { return epoch.Add(d) }

// story is evidence in the making: what the gate took in and said.
type story struct {
	evidence
	seq    map[string]uint64
	notice map[string]uint64
	leased map[string]int
}

func newStory() *story {
	s := &story{seq: map[string]uint64{}, notice: map[string]uint64{}, leased: map[string]int{}}
	s.epoch, s.ended = epoch, map[string]string{}
	return s
}

// says applies an exchange of a holder.
func (s *story) says(d time.Duration, holder string, x *contract.Exchange) {
	s.seq[holder]++
	x.Holder, x.Seq = &contract.Holder{Id: holder, Generation: 1}, s.seq[holder]
	s.leased[holder] -= len(x.Release)
	s.log = append(s.log, moment{at: at(d), exchange: x})
}

// looks says what is to be seen; grants are of one holder.
func (s *story) looks(d time.Duration, cooldown time.Time, holder string, grants ...*contract.Grant) {
	for _, g := range grants {
		s.notice[holder]++
		s.leased[holder]++
		g.Notice = s.notice[holder]
	}
	l := look{cooldown: cooldown}
	for id := range s.seq {
		h := holderLook{id: id, leased: s.leased[id]}
		if id == holder {
			h.grants = grants
		}
		l.holders = append(l.holders, h)
	}
	s.log = append(s.log, moment{at: at(d), look: l})
}

func acquire(number uint64) *contract.Acquire {
	return &contract.Acquire{Ticket: fmt.Appendf(nil, "ticket-%09d", number), Number: number, Attempt: 1}
}

func grant(number, lease uint64) *contract.Grant {
	return &contract.Grant{Number: number, Lease: lease, Generation: 1}
}

func release(lease uint64, outcome contract.Outcome) *contract.Release {
	return &contract.Release{Lease: lease, Generation: 1, Outcome: outcome}
}

// call is an attempt from begin to end, served unless another status is given.
func (s *story) call(id, lease string, begin, end time.Duration, status ...int) {
	a := loopback.Attempt{Seq: len(s.attempts) + 1, CallID: id, Lease: lease, Arrived: begin, Ended: end, Status: 200}
	if len(status) > 0 {
		a.Status = status[0]
	}
	s.attempts = append(s.attempts, a)
}

func (s *story) judged() (r Result) {
	judge(&s.evidence, &r)
	return r
}

// plain is a run of two calls in which nothing is wrong.
func plain() *story {
	s := newStory()
	s.calls = []string{"one", "two"}
	s.says(0, "a", &contract.Exchange{Acquire: []*contract.Acquire{acquire(1)}})
	s.looks(0, time.Time{}, "a", grant(1, 11))
	s.says(10*time.Millisecond, "b", &contract.Exchange{Acquire: []*contract.Acquire{acquire(2)}})
	s.looks(10*time.Millisecond, time.Time{}, "b", grant(2, 12))
	s.call("one", "11/1", 10*time.Millisecond, 50*time.Millisecond)
	s.call("two", "12/1", 20*time.Millisecond, 60*time.Millisecond)
	s.says(70*time.Millisecond, "a", &contract.Exchange{Release: []*contract.Release{release(11, contract.Outcome_OUTCOME_SUCCESS)}})
	s.says(80*time.Millisecond, "b", &contract.Exchange{Release: []*contract.Release{release(12, contract.Outcome_OUTCOME_SUCCESS)}})
	s.looks(80*time.Millisecond, time.Time{}, "")
	s.after.Counters = workflows.Counters{Admissions: 2, Releases: 2}
	return s
}

func TestNothingIsWrong(t *testing.T) {
	r := plain().judged()
	require.True(t, r.OK, r.Broken)
	require.Equal(t, 2, r.Completed)
	require.Equal(t, 2, r.Granted)
	require.Empty(t, r.Details)
}

// Each bound can be broken, by itself.
func TestEachFaultIsFound(t *testing.T) {
	for _, test := range []struct {
		broken string
		spoil  func(*story)
	}{
		{"lost is 1; allowed: 0", func(s *story) { s.calls = append(s.calls, "three") }},
		{"lost is 1; allowed: 0", func(s *story) { // a ticket that is still in the books
			s.says(90*time.Millisecond, "a", &contract.Exchange{Acquire: []*contract.Acquire{acquire(3)}})
		}},
		{"over_cap is 1; allowed: 0", func(s *story) {
			for i := range uint64(maxInFlight + 1) {
				s.says(time.Second, "a", &contract.Exchange{Acquire: []*contract.Acquire{acquire(20 + i)}})
				s.looks(time.Second, time.Time{}, "a", grant(20+i, 20+i))
				s.call("more", fmt.Sprintf("%d/1", 20+i), time.Second+time.Duration(i), 2*time.Second)
			}
		}},
		{"order_violations is 1; allowed: 0", func(s *story) {
			s.says(time.Second, "a", &contract.Exchange{Acquire: []*contract.Acquire{acquire(3)}})
			s.says(time.Second, "b", &contract.Exchange{Acquire: []*contract.Acquire{acquire(4)}})
			s.looks(time.Second, time.Time{}, "b", grant(4, 13))
			s.looks(time.Second, time.Time{}, "a", grant(3, 14))
		}},
		{"active_at_end is 1; allowed: 0", func(s *story) { s.drained.Started = 1 }},
		{"queued_at_end is 1; allowed: 0", func(s *story) { s.drained.Queued = 1 }},
		{"leaked_leases is 1; allowed: 0", func(s *story) { s.after.Started, s.after.Counters.Admissions = 1, 3 }},
		{"leaked_leases is 1; allowed: 0", func(s *story) { s.after.Counters.Admissions = 3 }},
		{"double_use is 1; allowed: 0", func(s *story) { s.call("two", "12/1", time.Second, time.Second) }},
		{"ungranted is 1; allowed: 0", func(s *story) { s.call("two", "", time.Second, time.Second) }},
		{"ungranted is 1; allowed: 0", func(s *story) { s.call("two", "12/2", time.Second, time.Second) }},
		{"cooldowns_lost is 1; allowed: 0", func(s *story) { // it was told and released as a success
			s.call("two", "13/1", time.Second, time.Second, 429)
			s.says(time.Second, "b", &contract.Exchange{Acquire: []*contract.Acquire{acquire(3)}})
			s.looks(time.Second, time.Time{}, "b", grant(3, 13))
			s.says(2*time.Second, "b", &contract.Exchange{Release: []*contract.Release{release(13, contract.Outcome_OUTCOME_SUCCESS)}})
			s.says(time.Minute, "b", &contract.Exchange{})
		}},
		{"cooldowns_lost is 1; allowed: 0", func(s *story) { // the gate was told and did nothing
			s.call("two", "13/1", time.Second, time.Second, 429)
			s.says(time.Second, "b", &contract.Exchange{Acquire: []*contract.Acquire{acquire(3)}})
			s.looks(time.Second, time.Time{}, "b", grant(3, 13))
			s.says(2*time.Second, "b", &contract.Exchange{Release: []*contract.Release{release(13, contract.Outcome_OUTCOME_OVERLOAD)}})
			s.looks(2*time.Second, time.Time{}, "")
		}},
		{"reclaim_p90_s is 8.1; allowed: at most 8", func(s *story) {
			s.says(time.Second, "b", &contract.Exchange{Acquire: []*contract.Acquire{acquire(3)}})
			s.looks(time.Second, time.Time{}, "b", grant(3, 13))
			s.struck.Kills = []kill{{"b", at(2 * time.Second)}}
			delete(s.seq, "b") // lost
			s.looks(10100*time.Millisecond, time.Time{}, "")
		}},
		{"fd_growth is 11; allowed: at most 10", func(s *story) {
			for i := range 8 {
				s.struck.Sizes = append(s.struck.Sizes, sample{At: epoch, Size: Size{Files: 100 + 11*(i/6)}})
			}
			s.loadEnd = at(time.Hour)
		}},
		{"goroutine_growth is 11; allowed: at most 10", func(s *story) {
			for i := range 8 {
				s.struck.Sizes = append(s.struck.Sizes, sample{At: epoch, Size: Size{Goroutines: 100 + 11*(i/6)}})
			}
			s.loadEnd = at(time.Hour)
		}},
	} {
		t.Run(test.broken, func(t *testing.T) {
			s := plain()
			test.spoil(s)
			r := s.judged()
			require.False(t, r.OK)
			require.Equal(t, []string{test.broken}, r.Broken, "%v", r.Details)
		})
	}
}

// What looks like a fault and is none.
func TestWhatIsNoFault(t *testing.T) {
	for _, test := range []struct {
		name  string
		spoil func(*story)
	}{
		{"a call that ended with its own error", func(s *story) {
			s.calls = append(s.calls, "three")
			s.ended["three"] = "cancelled"
		}},
		{"a holder that was silent is passed over", func(s *story) {
			s.says(time.Second, "a", &contract.Exchange{Acquire: []*contract.Acquire{acquire(3)}})
			s.says(4*time.Second, "b", &contract.Exchange{Acquire: []*contract.Acquire{acquire(4)}})
			s.looks(4*time.Second, time.Time{}, "b", grant(4, 13))
			s.looks(4*time.Second, time.Time{}, "a", grant(3, 14))
		}},
		{"a parked ticket is passed over, and keeps its place", func(s *story) {
			s.says(time.Second, "a", &contract.Exchange{Acquire: []*contract.Acquire{acquire(3)}})
			s.says(time.Second, "a", &contract.Exchange{Cancel: []*contract.Cancel{{Number: 3, Attempt: 1, Park: true}}})
			s.says(time.Second, "b", &contract.Exchange{Acquire: []*contract.Acquire{acquire(4)}})
			s.looks(time.Second, time.Time{}, "b", grant(4, 13))
			s.says(time.Second, "b", &contract.Exchange{Acquire: []*contract.Acquire{acquire(5)}})
			again := acquire(3)
			again.Number, again.Attempt = 6, 2
			s.says(time.Second, "a", &contract.Exchange{Acquire: []*contract.Acquire{again}})
			s.looks(time.Second, time.Time{}, "a", grant(6, 14))
			s.looks(time.Second, time.Time{}, "b", grant(5, 15))
		}},
		{"a lease that was handed back stands where it stood", func(s *story) {
			s.says(time.Second, "a", &contract.Exchange{Acquire: []*contract.Acquire{acquire(3)}})
			s.looks(time.Second, time.Time{}, "a", grant(3, 13))
			s.says(time.Second, "b", &contract.Exchange{Acquire: []*contract.Acquire{acquire(4)}})
			s.says(time.Second, "a", &contract.Exchange{HandBack: []*contract.HandBack{{Lease: 13}}})
			again := grant(3, 14)
			again.Generation = 2
			s.looks(time.Second, time.Time{}, "a", again)
			s.looks(time.Second, time.Time{}, "b", grant(4, 15))
		}},
		{"a cooldown that its worker didn't live to tell", func(s *story) {
			s.call("two", "13/1", time.Second, time.Second, 429)
			s.says(time.Second, "b", &contract.Exchange{Acquire: []*contract.Acquire{acquire(3)}})
			s.looks(time.Second, time.Time{}, "b", grant(3, 13))
		}},
		{"a cooldown that was applied", func(s *story) {
			s.call("two", "13/1", time.Second, time.Second, 429)
			s.says(time.Second, "b", &contract.Exchange{Acquire: []*contract.Acquire{acquire(3)}})
			s.looks(time.Second, time.Time{}, "b", grant(3, 13))
			s.says(2*time.Second, "b", &contract.Exchange{Release: []*contract.Release{release(13, contract.Outcome_OUTCOME_OVERLOAD)}})
			s.looks(2*time.Second, at(2*time.Second+fallbackCooldown), "")
			s.says(time.Minute, "b", &contract.Exchange{})
		}},
		{"places of a dead worker while the server was away", func(s *story) {
			s.says(time.Second, "b", &contract.Exchange{Acquire: []*contract.Acquire{acquire(3)}})
			s.looks(time.Second, time.Time{}, "b", grant(3, 13))
			s.struck.Kills = []kill{{"b", at(2 * time.Second)}}
			s.struck.Outages = []outage{{at(3 * time.Second), at(30 * time.Second)}}
			delete(s.seq, "b")
			s.looks(35*time.Second, time.Time{}, "")
		}},
		{"a caller that left just before the provider noticed", func(s *story) {
			for i := range uint64(maxInFlight + 1) {
				s.says(time.Second, "a", &contract.Exchange{Acquire: []*contract.Acquire{acquire(20 + i)}})
				s.looks(time.Second, time.Time{}, "a", grant(20+i, 20+i))
				end, status := 2*time.Second, 200
				if i == 0 {
					end, status = time.Second+noticeLag, 499
				}
				s.call("more", fmt.Sprintf("%d/1", 20+i), time.Second+time.Duration(i), end, status)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := plain()
			test.spoil(s)
			r := s.judged()
			require.True(t, r.OK, "%v\n%v", r.Broken, r.Details)
		})
	}
}

// A request that a stopped process had under way is counted apart.
func TestZombieOverlap(t *testing.T) {
	s := plain()
	for i := range uint64(maxInFlight + 1) {
		holder := "a"
		if i == 0 {
			holder = "b"
		}
		s.says(time.Second, holder, &contract.Exchange{Acquire: []*contract.Acquire{acquire(20 + i)}})
		s.looks(time.Second, time.Time{}, holder, grant(20+i, 20+i))
		s.call("more", fmt.Sprintf("%d/1", 20+i), time.Second+time.Duration(i), 2*time.Second)
	}
	require.Equal(t, 1, s.judged().OverCap)
	s.struck.Stops = []stop{{"b", at(time.Second), at(10 * time.Second)}}
	r := s.judged()
	require.True(t, r.OK, r.Broken)
	require.Equal(t, 1, r.ZombieOverlap)
}
