// Package loopback is a provider on the loopback interface that enforces a real
// quota over real HTTP. Demonstrations, tests and benchmarks call it instead of
// a paid API, and read from it what really reached the other side.
//
// # What it has authority over
//
// Everything is judged at the provider: an attempt's arrival is the instant at
// which its handler decides, in this process's monotonic time, and no caller's
// clock or count plays a part. Each run (a label in the URL or in the header
// X-Sluice-Run) has a quota state and a record of its own, so rows of a
// comparison don't disturb one another.
//
//	POST /v1/runs/{run}/call ---+
//	POST /v1/call  (header) ----+--> judge (one lock per run) --> 200 after Quota.ServeTime
//	                                        |                     429 at once, Retry-After
//	                                        v                     499 the caller left (never sent)
//	GET  /stats/{run} <----------------- record
//	GET  /count/{run}, /attempts/{run} <----+
//
// A run may also follow a [Script], which decides from an attempt's number what
// becomes of it: refused, slow, or never answered.
//
// # Invariants
//
//   - Spacing has neither burst nor tolerance: an attempt that arrives sooner
//     than Quota.Interval after the last accepted one is answered 429. Refused
//     attempts move nothing.
//   - Never more than Quota.MaxInFlight calls are served at once.
//   - Attempts of a run are recorded in the order in which they were judged, and
//     their arrivals never decrease.
//   - The lock of a run is held for the decision only, never while a call is
//     served or an answer is written.
//   - Memory is bounded: [MaxRuns] runs, [MaxAttempts] recorded attempts per run
//     and [MaxLabel] bytes of each label. Beyond MaxAttempts a run goes on being
//     judged and counted, but its attempts and call IDs are no longer kept.
//
// # When something goes wrong
//
// A caller that goes away while it is served ends its call at once: the place in
// flight is free again and the attempt counts as aborted, not as completed. Its
// spacing stays spent. A malformed request (no run, a label that is too long, a
// run above MaxRuns) is answered with a status that is not an overload and is not
// an attempt of any run. [Provider.Close] ends whatever is being served.
//
// The package imports the standard library only.
package loopback
