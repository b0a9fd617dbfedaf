// How long requests take: those of this page, and all of the server by its metrics.

import { askText, times } from "./asking.js";
import { count, element, find, milliseconds, table } from "./elements.js";

const EVERY = 2000; // milliseconds
const OWN = "Requests of this page: milliseconds in the browser";
const BUCKET = /^topshelf_request_seconds_bucket\{(.*)\} (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;
const NOT_ASKED = /^\/(metrics|page\/.*)?$/; // this page itself
let before = null; // the metrics of the last look, and when
let timer = null;

function quantile(sorted, share) {
  return sorted[Math.min(sorted.length - 1, Math.ceil(share * sorted.length) - 1)];
}

export function showOwnTimes() {
  const rows = [...times].map(([path, spent]) => {
    const sorted = spent.toSorted((one, other) => one - other);
    return [`/${path}`, count(spent.length), ...[spent.at(-1), quantile(sorted, 0.5), sorted.at(-1)].map(milliseconds)];
  });
  const columns = ["route", "requests", "last", "median", "longest"];
  find("own-times").replaceChildren(
    element("p", { class: "caption", "aria-hidden": "true" }, OWN), table(OWN, columns.map(titled), rows));
}

const titled = (title, at) => ({ title, isNumber: at > 0 });

// Counts by route and upper bound, which rise from bound to bound.
export function readBuckets(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const parts = BUCKET.exec(line);
    if (!parts) continue;
    const labels = Object.fromEntries([...parts[1].matchAll(LABEL)].map((one) => [one[1], one[2]]));
    if (!found.has(labels.route)) found.set(labels.route, []);
    found.get(labels.route).push([labels.le === "+Inf" ? Infinity : Number(labels.le), Number(parts[2])]);
  }
  return found;
}

// The upper bound of the bucket that holds the share; what is known is that requests took no longer.
function bound(buckets, share) {
  const wanted = share * buckets.at(-1)[1];
  const upper = buckets.find(([, n]) => n >= wanted)[0];
  return upper === Infinity ? `> ${milliseconds(buckets.at(-2)[0] * 1000)}` : `≤ ${milliseconds(upper * 1000)}`;
}

function since(now, then) {
  if (!then) return now;
  const old = new Map(then);
  return now.map(([upper, n]) => [upper, n - (old.get(upper) ?? 0)]);
}

async function look() {
  const text = await askText("metrics");
  const now = { at: performance.now(), buckets: readBuckets(text) };
  const seconds = before && (now.at - before.at) / 1000;
  const rows = [...now.buckets].filter(([route]) => !NOT_ASKED.test(route)).map(([route, buckets]) => {
    const total = buckets.at(-1)[1];
    const latest = since(buckets, before?.buckets.get(route));
    const n = before ? latest.at(-1)[1] : 0;
    const shown = n > 0 ? [bound(latest, 0.5), bound(latest, 0.99)] : ["–", "–"];
    return [route, count(total), total ? bound(buckets, 0.99) : "–", before ? (n / seconds).toFixed(1) : "–", ...shown];
  });
  const columns = ["route", "requests", "99%", "per second now", "median now", "99% now"];
  before = now;
  find("server-table").replaceChildren(table("Requests to this server: milliseconds in the server", columns.map(titled), rows));
}

async function again() {
  timer = null;
  if (!find("server-times").open) return;
  try {
    if (!document.hidden) await look();
    timer = setTimeout(again, EVERY);
  } catch (error) {
    before = null;
    find("server-table").replaceChildren(element("p", { class: "warning" }, error.message));
  }
}

export function watchServer() {
  find("server-times").addEventListener("toggle", () => {
    clearTimeout(timer);
    before = null;
    again();
  });
}
