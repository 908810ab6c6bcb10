package admission_test

import (
	"fmt"
	"time"

	"sluice/admission"
)

// A gate with two places: three tickets come, two are granted, and the third is
// as soon as a place is free.
func ExampleScheduler() {
	now := admission.InstantOf(time.Date(2025, 6, 1, 12, 0, 0, 0, time.UTC))
	s, _ := admission.New(now, admission.Limits{MaxInFlight: 2}, admission.Options{})
	me, _ := s.Register(now, "worker-1", 1)
	for n := range uint64(3) {
		_ = s.Acquire(now, me, admission.Request{Key: admission.Key{byte(n)}, Number: n + 1, Attempt: 1})
	}
	s.Advance(now)
	first := s.Notices(me)[0].Lease
	s.Release(now, me, first, 0, admission.Feedback{Asked: -1})
	s.Advance(now)
	for _, n := range s.Notices(me) {
		fmt.Println("ticket", n.Ticket, "granted, lease", n.Lease-first+1)
	}
	// Output:
	// ticket 1 granted, lease 1
	// ticket 2 granted, lease 2
	// ticket 3 granted, lease 3
}

// Over the wire a holder sends everything at once, and gets back what became of
// it. Here the gate is paced, and looks a second ahead.
func ExampleScheduler_Apply() {
	now := admission.InstantOf(time.Date(2025, 6, 1, 12, 0, 0, 0, time.UTC))
	limits := admission.Limits{Pacing: admission.Rate{Limit: 3, Per: time.Second, Burst: 1}}
	s, _ := admission.New(now, limits, admission.Options{})
	answer := s.Apply(now, &admission.Exchange{Holder: "worker-1", Generation: 1, Seq: 1, Acquire: []admission.Request{
		{Key: admission.Key{1}, Number: 1, Attempt: 1},
		{Key: admission.Key{2}, Number: 2, Attempt: 1},
	}})
	for _, n := range answer.Notices {
		fmt.Println("ticket", n.Ticket, "starts after", n.StartAt.Sub(now))
	}
	// Output:
	// ticket 1 starts after 0s
	// ticket 2 starts after 333.333334ms
}

// The state is carried over as bytes; the restored scheduler goes on as the one
// it was taken from.
func ExampleRestore() {
	now := admission.InstantOf(time.Date(2025, 6, 1, 12, 0, 0, 0, time.UTC))
	s, _ := admission.New(now, admission.Limits{MaxCooldown: time.Minute}, admission.Options{})
	s.Cooldown(now, 10*time.Second, admission.Cause{Status: 429, Source: "retry-after"})

	restored, err := admission.Restore(s.Snapshot(nil))
	fmt.Println(err, restored.Status(0).Cooldown.Sub(now))
	// Output: <nil> 10s
}
