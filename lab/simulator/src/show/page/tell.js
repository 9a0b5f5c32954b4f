// Describes spans in words.

// Returns a duration in a readable unit.
function time(ns) {
  if (ns < 1e4) return `${Math.round(ns)} ns`;
  if (ns < 1e7) return `${(ns / 1e3).toFixed(1)} µs`;
  if (ns < 1e10) return `${(ns / 1e6).toFixed(1)} ms`;
  return `${(ns / 1e9).toFixed(3)} s`;
}

function doing(panel, span, took) {
  const of = panel.names[panel.of[span]];
  switch (panel.what[span]) {
    case RUN: return `runs for ${took}`;
    case CORE: return `waits ${took} for a core`;
    case WAIT: return `waits ${took} for ${of}`;
    case DISK: return `waits ${took} for the disk`;
    case NETWORK: return `waits ${took} for its message`;
    default: return `has ${of} for ${took}`;
  }
}

// Returns a sentence about a chain of causes, the same as `sentence` in recording.rs: the time of a
// cause is the time during which all spans of the chain so far overlap.
function sentence(panel, chain) {
  const name = (lane) => panel.names[lane];
  let words = `${name(panel.lane[chain[0]])} ${doing(panel, chain[0], time(panel.length(chain[0])))}`;
  let [from, to] = [panel.from[chain[0]], panel.to[chain[0]]];
  for (let at = 1; at < chain.length; at++) {
    const lane = panel.lane[chain[at]];
    words += lane === panel.lane[chain[at - 1]] ? ' and ' : `, behind ${name(lane)}, which `;
    const whole = to - from;
    [from, to] = [Math.max(from, panel.from[chain[at]]), Math.min(to, panel.to[chain[at]])];
    const part = Math.max(0, to - from);
    const isWholeHold = panel.what[chain[at]] === HOLD && part === whole;
    words += doing(panel, chain[at], isWholeHold ? time(panel.length(chain[at])) : `${time(part)} of it`);
  }
  const last = chain[chain.length - 1];
  // If the last span is a wait, no cause of it follows in the chain. So its blocker is only named.
  if (panel.what[last] === WAIT && panel.behind[last] >= 0) words += `, behind ${name(panel.behind[last])}`;
  return words;
}

// Returns lines: a sentence about the span, and, for a wait for a lock, up to three lanes that held
// the lock longest during the wait.
function tell(panel, span) {
  const lines = [sentence(panel, panel.chain(span))];
  for (const { lane, time: held } of panel.holders(span).slice(0, 3)) {
    lines.push(`${panel.names[lane]} has ${panel.names[panel.of[span]]} for ${time(held)} of it`);
  }
  return lines;
}

// Returns the spans that belong to a span: the span itself, its causes, and, for a wait for a lock,
// the holds of the lock during the wait.
function party(panel, span) {
  const spans = new Set(panel.chain(span));
  for (const holder of panel.holders(span)) holder.spans.forEach((hold) => spans.add(hold));
  return spans;
}
