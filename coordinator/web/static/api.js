// Asking the coordinator, again and again, and saying how that goes.

const LIVE_SECONDS = 2;
const SLOW_SECONDS = 10;
const LONGEST_SECONDS = 30;
const PAUSES = 10; // as long as an answer took: who has much to look up is asked less often
const STALE_SECONDS = 12;
const GIVE_UP_SECONDS = 25;

/** An answer that is an error: its text is for people. */
export class Refusal extends Error {}

/** There is no answer, or none that is the coordinator's. */
class Away extends Error {}

/** The JSON at a path below /api. */
export async function get(path) {
  const giveUp = AbortSignal.timeout(GIVE_UP_SECONDS * 1000);
  let response, answer;
  try {
    response = await fetch(`/api/${path}`, { signal: giveUp, cache: "no-cache" });
    answer = await response.json();
  } catch {
    throw new Away("The coordinator does not answer");
  }
  if (response.status === 401) location.assign("/login");
  if (!response.ok) throw new Refusal(answer.error);
  return answer;
}

/** A path with ids of people's choosing in it. */
export function path(parts, ...ids) {
  return parts.reduce((all, part, i) => all + part + (i < ids.length ? encodeURIComponent(ids[i]) : ""), "");
}

/**
 * Loads a page and keeps it up to date until `stop`. `load` resolves to whether anything is going
 * on; `tell({state, seconds, message, retry})` hears how it goes: loading, live,
 * stale, refused or away.
 */
export class Polling {
  #load;
  #tell;
  #timer = 0;
  #failures = 0;
  #loadedAt = 0;
  #answers = false;
  #message = "";
  #stopped = false;
  #busy = false;
  #again = false;
  #wait = 0;
  #watch;

  constructor(load, tell) {
    this.#load = load;
    this.#tell = tell;
    this.#watch = setInterval(() => this.#say(), 1000);
    document.addEventListener("visibilitychange", this.#seen);
    this.#turn();
  }

  /** Load now, and not when it is time. */
  again = () => {
    this.#again = this.#busy;
    this.#turn();
  };

  stop() {
    this.#stopped = true;
    clearTimeout(this.#timer);
    clearInterval(this.#watch);
    document.removeEventListener("visibilitychange", this.#seen);
  }

  // Nobody looks at a hidden page; when it is seen again it is out of date.
  #seen = () => {
    if (!document.hidden) this.#turn();
  };

  async #turn() {
    clearTimeout(this.#timer);
    if (this.#stopped || this.#busy || document.hidden) return;
    this.#busy = true;
    const began = Date.now();
    let wait;
    try {
      const live = await this.#load();
      this.#failures = 0;
      this.#loadedAt = Date.now();
      const took = (Date.now() - began) / 1000;
      wait = Math.min(LONGEST_SECONDS, Math.max(live ? LIVE_SECONDS : SLOW_SECONDS, PAUSES * took));
    } catch (error) {
      this.#failures += 1;
      this.#answers = !(error instanceof Away);
      this.#message = error.message;
      wait = Math.min(LONGEST_SECONDS, LIVE_SECONDS * 2 ** (this.#failures - 1));
      if (!(error instanceof Away || error instanceof Refusal)) console.error(error); // a bug
    }
    this.#busy = false;
    if (this.#stopped) return;
    this.#say();
    this.#wait = wait;
    if (this.#again) {
      this.#again = false;
      wait = 0;
    }
    // Not all pages at once when the coordinator is back.
    this.#timer = setTimeout(() => this.#turn(), wait * 1000 * (0.9 + 0.2 * Math.random()));
  }

  #say() {
    if (this.#stopped) return;
    const seconds = this.#loadedAt ? (Date.now() - this.#loadedAt) / 1000 : null;
    const stale = seconds !== null && seconds > STALE_SECONDS + this.#wait;
    const failed = this.#answers ? "refused" : "away";
    const state = this.#failures ? failed : stale ? "stale" : seconds === null ? "loading" : "live";
    this.#tell({ state, seconds, message: this.#message, retry: this.again });
  }
}
