// What a person reads. Instants are milliseconds or RFC 3339, as the gates write them.

export const ms = (instant) => (typeof instant === "number" ? instant : Date.parse(instant));

// span is a duration at a glance, as the terminal's commands write it. Of seconds.
export function span(seconds) {
  const s = Math.round(Math.max(seconds, 0) * 10) / 10;
  const two = (n) => String(Math.floor(n)).padStart(2, "0");
  if (s < 60) return s.toFixed(1) + "s";
  if (s < 3600) return Math.floor(s / 60) + "m" + two(s % 60) + "s";
  if (s < 86400) return Math.floor(s / 3600) + "h" + two((s % 3600) / 60) + "m";
  return Math.floor(s / 86400) + "d" + two((s % 86400) / 3600) + "h";
}

const time = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "2-digit", day: "2-digit" });

// clock is the local time of day, with the day where it is another one.
export function clock(instant, now) {
  const at = new Date(ms(instant));
  return at.toDateString() === new Date(now).toDateString() ? time.format(at) : day.format(at) + " " + time.format(at);
}

export const number = (n) => (n === null || n === undefined ? "–" : Number.isInteger(n) ? String(n) : n.toFixed(n < 10 ? 2 : 1));

export function by(who, why) {
  return (who ? "by " + who : "") + (who && why ? ": " : "") + (why || "");
}
