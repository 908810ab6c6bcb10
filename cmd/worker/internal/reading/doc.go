// Package reading says what a gate's status means at an instant, for the commands
// and the page that show it: whether the gate admits, how much runs, what is in
// force instead of the policy.
//
// A status is as of the gate's last step, which may be long ago where nothing
// happens, so whatever depends on time is computed by the reader. All functions
// are pure.
package reading
