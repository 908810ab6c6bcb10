// Package admission decides who may call a rate-limited provider, and when.
//
// It has authority over one thing: the order and the instants at which tickets
// become leases. It is a pure state machine,
//
//	(state, now, event) -> (state, notices)
//
// with the standard library as its only import, no clock, no lock, no
// goroutine, no randomness and no log. The workflow, the in-process gate, the
// tools and the tests all run this code unchanged.
//
//	acquire --> queued --admit--> reserved --start_at--> started --release--> gone
//	              |  ^               |                      |
//	   deadline,  |  +---hand back---+                      +--> max_hold, holder lost
//	   cancel     v
//	             refused
//
// # The rule
//
// The head of the queue is admitted at the first instant t at which all hold:
//
//  1. no present ticket stands before it (strict first come, first served),
//  2. leases in use plus its weight are within the cap,
//  3. t is not before the pacing's next instant,
//  4. every budget has its cost,
//  5. t is not before the cooldown's end, and the gate is not paused.
//
// An admission may lie up to Limits.LookAhead in the future: it takes its place
// in the cap at once and may start at its start_at. Until then it stands before
// all that come after it, so starts are in the order of grants.
//
// # Invariants
//
//   - In use never exceeds the cap by an admission (it may by a lowered cap, or
//     by leases that a holder presents after the state was lost).
//   - Two admissions of a spaced gate are never closer than Per/Limit, exactly.
//   - Over any stretch of time a budget yields no more than its burst and what
//     the rate gives in that time, also where leases gave units back.
//   - Nobody overtakes a present ticket. A ticket ends once.
//   - Restore(Snapshot()) equals the scheduler it came from. Open waits and news
//     not taken are no part of it: both end with the process.
//   - now going backwards counts as standing still: nothing is admitted early
//     and nothing wedges.
//   - Map order never reaches an answer or a snapshot.
//
// # When something is wrong
//
// What can't be admitted before its deadline is refused when it arrives, and
// once more when it has become the first in line.
//
// Misuse is an error value or a counted no-op ([Counters]), never a panic: a
// panic would wedge a singleton. A holder that falls silent is passed over
// after [PresenceGrace], and after Limits.HolderTTL its leases end and its
// tickets are parked. A message that was applied already changes nothing.
//
// A Scheduler is not safe for concurrent use.
package admission
