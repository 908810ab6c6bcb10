// Package policy says what a gate enforces, which gate a call belongs to, and
// what a provider's answer asks for. It has no state, no clock and does no
// input or output but [Load] and [Policy.WriteEffective]; what time it is, is a
// parameter.
//
//	policy file --Parse--+                     +-- Find(method, URL, name) -> *Gate
//	Go values ----New----+--> reader --> Policy+-- ByActivity, ByName, ByID -> *Gate
//	JSON ----DecodeGate--+     one set         +-- WriteEffective, EffectiveJSON
//	                           of rules
//	Gate --> Limits (the scheduler's), Hash, Diff, canonical JSON
//	Gate + status + headers + body + now --ReadHintBody--> Hint     (an overload)
//	Gate + status + headers + now --------ReadLesson----> Lesson   (a success)
//	keys --Schema--> JSON Schema, for editors
//
// # Authority
//
// The package alone decides what is a valid policy, what its defaults are, how
// an endpoint is spelled, and how headers that say "slow down" are read. What a
// limit means is package admission's.
//
// # The file
//
// One YAML document, a mapping of on_invalid (refuse, disable) and gates, a
// list. The keys of a gate, in order: provider, endpoint, name, preset;
// max_in_flight; one of requests_per_second, min_interval, requests {limit,
// per, burst}; budgets [{unit, limit, per, burst}]; max_cooldown,
// fallback_cooldown, overload_statuses, reset_headers [{limit, remaining,
// reset}], learn; queue_timeout, max_queue, min_call_time; hold, max_hold,
// on_lease_lost, on_unavailable; holder_ttl, park_ttl, look_ahead,
// start_window, max_exchanges_per_second; activities, exclude, retry_hint,
// revision. [Gate] documents each with its default and bounds.
//
// Durations are Go durations such as 2m, or a plain 0. Numbers are plain
// decimals. 0 switches off max_in_flight, the request forms, a budget's limit,
// max_cooldown (feedback), fallback_cooldown, queue_timeout, min_call_time,
// look_ahead and max_exchanges_per_second; everywhere else it is refused. In a
// Gate that is written in Go the zero value is the default instead, and [Off]
// switches MaxCooldown and LookAhead off.
//
// # Invariants
//
//   - Every fault is reported at once, with its place, in order of place. A
//     faulty policy is never half a policy: there is none.
//   - on_invalid: disable turns the fault of one limit's value into a warning
//     and runs without that limit, or with its default where it has no off.
//     Keys that are unknown or repeated, identities and words still refuse.
//   - Two spellings of one endpoint are one gate ID; two providers never share
//     one. Userinfo, query and fragment of an endpoint reach no ID and no error.
//   - Rates are exact: 7.5 per second is 15 per 2 s. No floating point.
//   - A normalised gate, its JSON and its effective YAML say the same, and each
//     reads back to the same gate.
//   - Equal hashes mean that gate and holders enforce the same.
//   - What is applied of a hint or a lesson is never negative and never above
//     max_cooldown, and a larger value of one form never asks for less.
//   - A preset adds knowledge of a provider and takes none away.
//   - Reader, faults, schema and reference come from one table, gateKeys.
//   - A Policy does not change: all of it is safe for concurrent use.
//
// # Failure
//
// What is wrong with a policy is a *[FaultError]. [Policy.Find] and
// [Policy.ByName] fail with [ErrUnknownGate] and [ErrAmbiguousGate], which list
// the gates there are. [Policy.Find] takes a URL that it can't normalise for one
// without a gate: the request itself will say what is wrong with it. A header
// or body that can't be read is named in [Hint.Malformed] and passed over.
package policy
