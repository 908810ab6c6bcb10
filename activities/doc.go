// Package activities is the activity's side of Sluice: it takes leases, starts
// them at their gate time, and brings what an attempt learned back to the gate.
//
//	activity --> Transport | Do | interceptor --> Gate.Acquire --> lease --> call
//	                                                |                         |
//	                             one exchange per gate in flight <-- Release with feedback
//
// It has authority over when a lease starts in this process, and over nothing
// else: order, cap and pacing are the gate's (package admission).
//
// # Ways in
//
//   - [HTTPClient] and [Transport]: one lease for each request on the wire.
//   - [Do]: one lease around any code.
//   - The policy's `activities`: one lease around a whole activity, without a
//     change to its code.
//   - [Caller]: a ready-made activity that makes an HTTP call.
//   - [TryAcquire]: a lease at once, or none.
//
// What comes back is what the attempt learned: status and headers, from the
// response that [Transport] saw or from the error that the code returned (see
// answersIn for the shapes), and the cost that was real, from [Transport]'s Usage or
// [ReportUsage].
//
// All find their gates in the context, where the worker plugin puts them. With
// no gates there, or no gate for the request, the call is the plain call.
//
// # Invariants
//
//   - A lease starts at its start_at by the gate's clock, as it is known from
//     exchanges to a fraction of a round trip; the worker's clock has no part in it.
//   - Two starts of a spaced gate in this process are not closer than the
//     spacing (less a fiftieth, at most 1 ms, for timers); a lease that is late by more than its window is handed back.
//   - Feedback reaches the gate in the same exchange as, and is applied before,
//     the release: on every attempt, also when the caller has left meanwhile. An
//     answer counts once, whoever read it.
//   - What goes wrong in reading feedback, in a callback, in a log handler or in
//     telemetry changes neither the call's result nor the life of its lease.
//   - A failed attempt's error is changed in one way only: it may gain the delay
//     after which the gate admits again, and never comes sooner for it.
//   - A lease is given back on success, error, panic, runtime.Goexit,
//     cancellation and the end of the process; what nobody gives back ends at
//     the policy's max_hold.
//   - An exchange without an answer is sent again under the same number.
//   - No ticket and no lease: no goroutine and no traffic.
//   - A cancelled wait is never reported as a timeout; heartbeat details that
//     the user recorded survive a wait.
//
// # When something breaks
//
// While the gate can't be reached callers wait (the policy's on_unavailable).
// Leases are distrusted a fifth of the holder TTL before the gate ends them. If
// the gate was terminated, reset or forgot this process, everything this
// process has is presented again.
package activities
