// Times, sizes and numbers as people say them.

const UNITS = ["bytes", "KB", "MB", "GB", "TB", "PB"];

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  let value = bytes, unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) { value /= 1024; unit += 1; }
  if (!unit) return `${bytes} bytes`;
  return `${value >= 100 ? value.toFixed(0) : value.toFixed(1)} ${UNITS[unit]}`;
}

export const count = (number) => (number ?? 0).toLocaleString("en");

export const some = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

const STEPS = [[1000, "s", 1000], [60_000, "min", 60_000], [3_600_000, "h", 3_600_000], [86_400_000, "days", 86_400_000]];

export function span(ms) {
  const length = Math.abs(ms);
  if (length < 1000) return `${Math.round(length)} ms`;
  if (length < 10_000) return `${(length / 1000).toFixed(1)} s`;
  if (length < 60_000) return `${Math.round(length / 1000)} s`;
  if (length < 3_600_000) {
    const seconds = Math.round(length / 1000);
    return seconds < 600 && seconds % 60 ? `${Math.floor(seconds / 60)} min ${seconds % 60} s` : `${Math.round(seconds / 60)} min`;
  }
  if (length < 86_400_000) {
    const minutes = Math.round(length / 60_000);
    return minutes % 60 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${minutes / 60} h`;
  }
  const days = length / 86_400_000;
  if (days < 60) { const whole = Math.round(days); return `${whole} day${whole === 1 ? "" : "s"}`; }
  if (days < 700) return `${Math.round(days / 30.4)} months`;
  return `${(days / 365.25).toFixed(1)} years`;
}

// One unit is enough for "how long ago".
export function ago(ms, now) {
  if (ms === null || ms === undefined) return "–";
  const distance = now - ms;
  if (Math.abs(distance) < 1500) return "just now";
  let text = span(distance);
  for (const [, , step] of STEPS) {
    if (Math.abs(distance) >= step) {
      const number = Math.round(Math.abs(distance) / step);
      const name = { 1000: "s", 60000: "min", 3600000: "h", 86400000: number === 1 ? "day" : "days" }[step];
      text = Math.abs(distance) < 60 * 86_400_000 ? `${number} ${name}` : span(distance);
    }
  }
  return distance < 0 ? `in ${text}` : `${text} ago`;
}

const two = (number) => String(number).padStart(2, "0");

export function clock(ms, { seconds = true } = {}) {
  const at = new Date(ms);
  const text = `${two(at.getHours())}:${two(at.getMinutes())}`;
  return seconds ? `${text}:${two(at.getSeconds())}` : text;
}

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

export const day = (ms) => { const at = new Date(ms); return `${at.getDate()} ${MONTHS[at.getMonth()]}`; };

// Event times may lie anywhere: only those of the years 1 to 9999 have a date here.
export const isDated = (ms) => ms !== null && ms !== undefined && ms >= -62_135_596_800_000 && ms <= 253_402_300_799_999;

const undated = (ms) => (ms < 0 ? "before year 1" : "after year 9999");

export function when(ms) {
  if (ms === null || ms === undefined) return "–";
  if (!isDated(ms)) return undated(ms);
  const at = new Date(ms);
  const year = at.getFullYear() === new Date().getFullYear() ? "" : ` ${at.getFullYear()}`;
  return `${day(ms)}${year} ${clock(ms)}`;
}

export const exact = (ms) => (ms === null || ms === undefined ? "" : isDated(ms) ? new Date(ms).toISOString() : undated(ms));

export function zone() {
  const minutes = -new Date().getTimezoneOffset();
  if (!minutes) return "UTC";
  const sign = minutes < 0 ? "−" : "+";
  const hours = Math.floor(Math.abs(minutes) / 60), rest = Math.abs(minutes) % 60;
  return `UTC${sign}${hours}${rest ? `:${two(rest)}` : ""}`;
}

const NICE = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 1209600, 2592000, 7776000, 31536000].map((n) => n * 1000);

// Where an axis is marked, and what is written there.
export function ticks(from, to, most) {
  const step = NICE.find((each) => (to - from) / each <= most) ?? NICE.at(-1) * Math.ceil((to - from) / most / NICE.at(-1));
  const offset = new Date(from).getTimezoneOffset() * 60_000;
  const marks = [];
  for (let at = Math.ceil((from - offset) / step) * step + offset; at <= to; at += step) marks.push(at);
  const midnight = (at) => clock(at) === "00:00:00";
  return marks.map((at) => ({ at, text: step >= NICE.at(-1) ? String(new Date(at).getFullYear()) : step >= 86_400_000 || midnight(at) ? day(at) : clock(at, { seconds: step < 60_000 }) }));
}

export const KINDS = {
  commit: ["write", "Write"],
  deltacommit: ["write", "Write"],
  replacecommit: ["replace", "Replace"],
  compaction: ["compaction", "Compaction"],
  logcompaction: ["logcompaction", "Log compaction"],
  clustering: ["clustering", "Clustering"],
  clean: ["clean", "Clean"],
  rollback: ["rollback", "Rollback"],
  restore: ["rollback", "Restore"],
  savepoint: ["savepoint", "Savepoint"],
  indexing: ["savepoint", "Indexing"],
};

export const kindOf = (instant) => KINDS[instant.kind ?? instant.action] ?? ["savepoint", instant.action];

export const stateWord = { COMPLETED: "completed", INFLIGHT: "in flight", REQUESTED: "requested", ABORTED: "aborted" };

const OPERATIONS = { UPSERT: "upsert", INSERT: "insert", BULK_INSERT: "bulk insert", DELETE: "delete", DELETE_PARTITION: "delete partitions", INSERT_OVERWRITE: "overwrite partitions", INSERT_OVERWRITE_TABLE: "overwrite table", COMPACT: "compaction", LOG_COMPACT: "log compaction", CLUSTER: "clustering" };

export const operationWord = (text) => OPERATIONS[text] ?? (text ?? "").toLowerCase().replaceAll("_", " ");
