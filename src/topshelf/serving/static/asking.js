// Requests to the server that gave the page, with the key where there is one, and how long they took.

const KEPT = "topshelf.key"; // in sessionStorage: of this tab, gone when it is closed

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const times = new Map(); // milliseconds of the latest requests, by route
const KEEP = 200;
let changed = () => {};

export const onTimes = (call) => { changed = call; };
export const hasKey = () => sessionStorage.getItem(KEPT) !== null;
export const forgetKey = () => sessionStorage.removeItem(KEPT);

export function useKey(text) {
  if (!/^[\x21-\x7e]{1,1000}$/.test(text)) throw new Refused(401, "This is not a key.");
  sessionStorage.setItem(KEPT, text);
}

// Whole numbers beyond 2^53 would be rounded: they stay as they were written, which the server takes as ids too.
function exact(_name, value, context) {
  const isRounded = typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source);
  return isRounded ? context.source : value;
}

async function fetched(path, body) {
  const headers = {};
  if (body !== undefined) headers["content-type"] = "application/json";
  if (hasKey()) headers.authorization = `Bearer ${sessionStorage.getItem(KEPT)}`;
  const method = body === undefined ? "GET" : "POST";
  try {
    const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body), credentials: "omit" });
    return [answer, await answer.text()];
  } catch {
    throw new Refused(0, "The server does not answer.");
  }
}

export async function askText(path, body) {
  const began = performance.now();
  const [answer, text] = await fetched(path, body);
  if (path !== "metrics") took(path, performance.now() - began);
  if (!answer.ok) throw new Refused(answer.status, messageOf(text, answer));
  return text;
}

export const ask = async (path, body) => JSON.parse(await askText(path, body), exact);

function messageOf(text, answer) {
  const later = answer.headers.get("retry-after");
  const wait = later && answer.status === 429 ? ` Try again in ${later} s.` : "";
  try {
    return `The server says: ${JSON.parse(text).error}.${wait}`;
  } catch {
    return `The server answered with status ${answer.status}.${wait}`;
  }
}

function took(path, spent) {
  const some = times.get(path) ?? [];
  some.push(spent);
  times.set(path, some.slice(-KEEP));
  changed();
}
