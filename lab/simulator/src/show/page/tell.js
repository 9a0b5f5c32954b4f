// Spans in words.

// A time for people.
function time(ns) {
  if (ns < 1e4) return `${Math.round(ns)} ns`;
  if (ns < 1e7) return `${(ns / 1e3).toFixed(1)} µs`;
  if (ns < 1e10) return `${(ns / 1e6).toFixed(1)} ms`;
  return `${(ns / 1e9).toFixed(3)} s`;
}

function doing(panel, span) {
  const [of, took] = [panel.names[panel.of[span]], time(panel.length(span))];
  switch (panel.what[span]) {
    case RUN: return `runs for ${took}`;
    case CORE: return `waits ${took} for a core`;
    case WAIT: return `waits ${took} for ${of}`;
    case DISK: return `waits ${took} for the disk`;
    case NETWORK: return `waits ${took} for its message`;
    default: return `has ${of} for ${took}`;
  }
}

// A chain of causes in a sentence, as `sentence` of recording.rs makes it.
function sentence(panel, chain) {
  const name = (lane) => panel.names[lane];
  let words = `${name(panel.lane[chain[0]])} ${doing(panel, chain[0])}`;
  for (let at = 1; at < chain.length; at++) {
    const lane = panel.lane[chain[at]];
    words += lane === panel.lane[chain[at - 1]] ? ' and ' : `, behind ${name(lane)}, which `;
    words += doing(panel, chain[at]);
  }
  const last = chain[chain.length - 1];
  // Of this one nothing was recorded.
  if (panel.what[last] === WAIT && panel.behind[last] >= 0) words += `, behind ${name(panel.behind[last])}`;
  return words;
}

// A sentence on the span, and for a wait which lanes had the lock meanwhile.
function tell(panel, span) {
  const lines = [sentence(panel, panel.chain(span))];
  for (const { lane, time: held } of panel.holders(span).slice(0, 3)) {
    lines.push(`${panel.names[lane]} has ${panel.names[panel.of[span]]} for ${time(held)} of it`);
  }
  return lines;
}

// The spans that have to do with one: its causes, and the holds that it waits for.
function party(panel, span) {
  const spans = new Set(panel.chain(span));
  for (const holder of panel.holders(span)) holder.spans.forEach((hold) => spans.add(hold));
  return spans;
}
