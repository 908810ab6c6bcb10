//go:build race

package e2e

// raceDetector: the server in this process is ten times slower under it, and so
// is every exchange. Timing is judged in the plain run, with SLUICE_TIMING=strict.
const raceDetector = true
