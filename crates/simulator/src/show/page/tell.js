// Spans in words.

const CHAIN_MAX = 5;

// A time for people.
function time(ns) {
  if (ns < 1e4) return `${Math.round(ns)} ns`;
  if (ns < 1e7) return `${(ns / 1e3).toFixed(1)} µs`;
  if (ns < 1e10) return `${(ns / 1e6).toFixed(1)} ms`;
  return `${(ns / 1e9).toFixed(3)} s`;
}

function doing(panel, span) {
  const of = panel.names[panel.of[span]];
  switch (panel.what[span]) {
    case RUN: return 'runs';
    case CORE: return 'waits for a core';
    case WAIT: return `waits for ${of}`;
    case DISK: return 'waits for the disk';
    case NETWORK: return 'its message is on its way';
    default: return `has ${of}`;
  }
}

// One line on the span, and for a wait what is to blame: the blocker, its blocker, and the holder.
function tell(panel, span) {
  const took = time(panel.to[span] - panel.from[span]);
  const lines = [`${panel.names[panel.lane[span]]} ${doing(panel, span)} for ${took}`];
  if (panel.what[span] !== WAIT) return lines;
  const behind = panel.behind[span];
  if (behind >= 0) lines.push(`behind ${panel.names[behind]}${chain(panel, span)}`);
  for (const { lane, time: held } of panel.holders(span).slice(0, 3)) {
    lines.push(`${panel.names[lane]} has ${panel.names[panel.of[span]]} for ${time(held)} of it`);
  }
  return lines;
}

// What those in front do themselves.
function chain(panel, span) {
  let words = '', known = new Set([span]);
  for (let front = panel.front(span); front !== undefined && !known.has(front); front = panel.front(front)) {
    const isWait = panel.what[front] === WAIT;
    const behind = isWait && panel.behind[front] >= 0 ? ` behind ${panel.names[panel.behind[front]]}` : '';
    words += `, which ${doing(panel, front)}${behind}`;
    known.add(front);
    if (!isWait || known.size > CHAIN_MAX) break;
  }
  return words;
}

// The spans that have to do with a wait: it, what those in front do, and the holds it waits for.
function party(panel, span) {
  const spans = new Set([span]);
  for (let front = panel.front(span); front !== undefined && !spans.has(front); front = panel.front(front)) {
    spans.add(front);
    if (spans.size > CHAIN_MAX) break;
  }
  for (const holder of panel.holders(span)) holder.spans.forEach((hold) => spans.add(hold));
  return spans;
}
