// The page: its visible part, and the actions of keys, wheel and pointer.

const recorded = JSON.parse(document.getElementById('data').textContent);
const panels = recorded.panels.map((data, number) => new Panel(data, number));
const [first, last] = [
  Math.min(...panels.map((panel) => panel.begin)),
  Math.max(...panels.map((panel) => panel.end), 1),
];
// The shown part of the time (`from` to `to`), the whole recorded time (`first` to `last`), and, in
// CSS pixels, the width of the shown part (`width`) and of the whole canvas (`whole`).
const view = { from: first, to: last, first, last, width: 1, whole: 1 };
const painters = panels.map((panel) => new Painter(panel, view));
const element = (id) => document.getElementById(id);
const [tip, chosen, axis, overview] = ['tip', 'chosen', 'axis', 'overview'].map(element);
const NARROWEST = 100;
let selected, places = [], requestWaits = [], isDue = false;

function build() {
  panels.forEach((panel, number) => {
    const section = document.createElement('section');
    section.className = 'panel';
    const title = document.createElement('h2');
    title.textContent = panel.title;
    if (panel.colours) {
      const mark = document.createElement('span');
      mark.className = 'era';
      mark.style.background = `light-dark(${panel.colours[0]}, ${panel.colours[1]})`;
      title.prepend(mark);
    }
    const rows = document.createElement('div');
    rows.className = 'rows';
    const canvas = document.createElement('canvas');
    canvas.tabIndex = 0;
    canvas.setAttribute('role', 'application');
    canvas.setAttribute('aria-label', `Timeline of ${panel.title}: ${panel.lanes.size} lanes, `
      + `${panel.requestWaits.length} waits of requests. Keys: plus and minus zoom, arrows move, n goes to the next `
      + 'shorter wait of a request, p to the next longer one. What is chosen is told above, and tables follow.');
    const height = document.createElement('div');
    height.className = 'height';
    rows.append(height, canvas);
    section.append(title, rows);
    element('panels').append(section);
    const place = { panel, painter: painters[number], rows, canvas, height };
    places.push(place);
    rows.addEventListener('scroll', show);
    listen(place);
  });
  element('clocks').hidden = recorded.hasOneClock;
}

function legend() {
  const entries = [['reads', RUN, 'read'], ['writes', RUN, 'write'], ['work in the background', RUN, 'work'],
    ['blocked: waits for a lock', WAIT],
    ['waits for a worker', HELPED], ['waits for a core', CORE], ['disk', DISK], ['network', NETWORK],
    ['has a lock', HOLD]];
  element('legend').replaceChildren(...entries.map(([words, what, kind]) => {
    const entry = document.createElement('span');
    const canvas = document.createElement('canvas');
    const context = sheet(canvas, 30, 14);
    if (what === HOLD) {
      context.fillStyle = palette.hold;
      context.fillRect(0, 10, 30, 2);
    } else {
      paintBar(context, what, kind, 0, 1, 30, BAR);
    }
    entry.append(canvas, words);
    return entry;
  }));
}

function lay() {
  const isPacked = element('pack').getAttribute('aria-pressed') === 'true';
  for (const { panel } of places) {
    panel.lay(isPacked, selected?.panel === panel ? selected.chain : []);
    panel.showRows(view.from, view.to);
  }
  show();
}

// Sets the heights of a panel. Fewer rows take less height.
function fit({ panel, rows, height }) {
  const most = Math.max(140, (window.innerHeight * 0.62) / panels.length);
  rows.style.height = `${Math.max(40, Math.min(panel.height + 6, most))}px`;
  height.style.height = `${panel.height + 6}px`;
}

// Draws with the next frame. Several calls before that draw only once.
function show() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    view.whole = places[0].rows.clientWidth;
    view.width = Math.max(50, view.whole - LABELS - 8);
    for (const place of places) {
      const { panel, painter, rows, canvas } = place;
      panel.showRows(view.from, view.to);
      fit(place);
      const height = rows.clientHeight;
      canvas.style.height = `${height}px`;
      painter.paint(canvas, view.whole, height, rows.scrollTop, selected?.panel === panel ? selected : undefined);
    }
    for (const canvas of [axis, overview]) canvas.style.width = `${view.whole}px`;
    paintAxis(axis, view, recorded.hasOneClock ? panels[0].zero : 0);
    paintOverview(overview, view, painters);
  });
}

function look(from, to) {
  const whole = view.last - view.first;
  const width = Math.min(Math.max(to - from, Math.min(NARROWEST, whole)), whole);
  view.from = Math.min(Math.max(from, view.first), view.last - width);
  view.to = view.from + width;
  tip.hidden = true;
  show();
}

// Multiplies the length of the shown time by `by`. The time at the share `at` of the width keeps
// its position, unless the shown part would leave the recorded time.
function zoom(by, at = 0.5) {
  const width = (view.to - view.from) * by;
  const middle = view.from + (view.to - view.from) * at;
  look(middle - width * at, middle + width * (1 - at));
}

function pan(share) {
  const by = (view.to - view.from) * share;
  look(view.from + by, view.to + by);
}

// Returns the span under the pointer, or the nearest one within two pixels.
function under({ panel, painter, rows, canvas }, event) {
  const box = canvas.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top + rows.scrollTop];
  const row = painter.rowAt(y);
  if (x < LABELS || row >= panel.rows.length) return undefined;
  const perPoint = (view.to - view.from) / view.width;
  const at = view.from + (x - LABELS) * perPoint;
  const isBelow = !panel.rows[row].isLock && y - panel.tops[row] > BAR + 3;
  let found, best = Infinity;
  panel.rows[row].within(panel, at - 2 * perPoint, at + 2 * perPoint, (span) => {
    if (!panel.rows[row].isLock && (panel.what[span] === HOLD) !== isBelow) return;
    const away = Math.max(panel.from[span] - at, at - panel.to[span], 0);
    if (away < best) [found, best] = [span, away];
  });
  return found;
}

function hover(place, event) {
  const span = under(place, event);
  tip.hidden = span === undefined;
  if (tip.hidden) return;
  tip.textContent = tell(place.panel, span).join('\n');
  const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
  const isLow = event.clientY + tip.offsetHeight + 24 > window.innerHeight;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${event.clientY + (isLow ? -tip.offsetHeight - 12 : 16)}px`;
}

function select(panel, span) {
  selected = undefined;
  if (span !== undefined) {
    const isWait = panel.what[span] === WAIT;
    selected = { panel, span, party: party(panel, span), chain: isWait ? panel.chain(span) : [] };
    chosen.textContent = tell(panel, span).join('\n');
    chosen.className = '';
  }
  lay();
}

// Selects a span, and moves the view so that the span and its causes are visible.
function goTo(place, span) {
  const { panel, rows } = place;
  select(panel, span);
  const [from, to, took] = [panel.from[span], panel.to[span], panel.length(span)];
  const causes = panel.chain(span);
  // A cause that starts long before the wait or ends long after it is not shown completely.
  const first = Math.max(Math.min(...causes.map((cause) => panel.from[cause])), from - 3 * took);
  const last = Math.min(Math.max(...causes.map((cause) => panel.to[cause])), to + 3 * took);
  const margin = (last - first) * 0.15;
  const isSeen = first >= view.from && last <= view.to && took * 12 > view.to - view.from;
  if (!isSeen) look(first - margin, last + margin);
  rows.scrollTop = 0;
}

// Sorts the waits of requests in all panels. The longest is first.
function sortWaits() {
  requestWaits = places.flatMap((place) => place.panel.requestWaits.map((span) => ({ place, span })));
  requestWaits.sort((a, b) => b.place.panel.length(b.span) - a.place.panel.length(a.span));
}

// Goes from the selected wait to the next shorter one if `by` is 1, and to the next longer one if
// it is -1. The longest wait follows the shortest one.
function step(by) {
  if (requestWaits.length === 0) return;
  const at = requestWaits.findIndex(({ place, span }) => place.panel === selected?.panel && span === selected.span);
  const start = by > 0 ? -1 : 0;
  const count = requestWaits.length;
  const next = requestWaits[((at < 0 ? start : at) + by + count) % count];
  goTo(next.place, next.span);
}

function listen(place) {
  const { canvas, rows } = place;
  let drag;
  canvas.addEventListener('wheel', (event) => {
    event.preventDefault();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      pan((event.deltaX || event.deltaY) / view.width);
    } else {
      const share = (event.offsetX - LABELS) / view.width;
      zoom(1.0018 ** event.deltaY, Math.min(Math.max(share, 0), 1));
    }
  }, { passive: false });
  canvas.addEventListener('pointerdown', (event) => {
    drag = { x: event.clientX, y: event.clientY, from: view.from, to: view.to, top: rows.scrollTop, isMoved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener('pointermove', (event) => {
    if (!drag) return hover(place, event);
    const [x, y] = [event.clientX - drag.x, event.clientY - drag.y];
    drag.isMoved ||= Math.hypot(x, y) > 4;
    if (!drag.isMoved) return;
    canvas.classList.add('dragging');
    const by = (-x / view.width) * (drag.to - drag.from);
    look(drag.from + by, drag.to + by);
    rows.scrollTop = drag.top - y;
  });
  canvas.addEventListener('pointerup', (event) => {
    if (drag && !drag.isMoved) select(place.panel, under(place, event));
    canvas.classList.remove('dragging');
    drag = undefined;
  });
  canvas.addEventListener('pointercancel', () => { drag = undefined; });
  canvas.addEventListener('pointerleave', () => { tip.hidden = true; });
  canvas.addEventListener('dblclick', (event) => zoom(0.4, (event.offsetX - LABELS) / view.width));
}

function scroll(by) {
  const place = places.find(({ canvas }) => canvas === document.activeElement) ?? places[0];
  place.rows.scrollTop += by;
}

const KEYS = {
  '+': () => zoom(0.6), '=': () => zoom(0.6), '-': () => zoom(1 / 0.6), 0: () => look(view.first, view.last),
  ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15), ArrowUp: () => scroll(-40), ArrowDown: () => scroll(40),
  PageUp: () => scroll(-300), PageDown: () => scroll(300),
  Home: () => look(view.first, view.first + view.to - view.from),
  End: () => look(view.last - (view.to - view.from), view.last),
  n: () => step(1), p: () => step(-1), Escape: () => { tip.hidden = true; select(); },
};

function wire() {
  const actions = { in: '+', out: '-', all: 0, next: 'n', previous: 'p' };
  for (const [id, key] of Object.entries(actions)) element(id).addEventListener('click', KEYS[key]);
  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(KEYS, event.key)) return;
    // While no canvas has the focus, these keys scroll the whole page, as in any other page.
    const isOnCanvas = document.activeElement?.tagName === 'CANVAS';
    if (!isOnCanvas && /^(Arrow|Page|Home|End)/.test(event.key)) return;
    event.preventDefault();
    KEYS[event.key]();
  });
  element('pack').addEventListener('click', ({ target }) => {
    target.setAttribute('aria-pressed', String(target.getAttribute('aria-pressed') !== 'true'));
    lay();
  });
  const themes = ['system', 'light', 'dark'];
  element('theme').addEventListener('click', ({ target }) => {
    const root = document.documentElement;
    const next = themes[(themes.indexOf(root.dataset.theme ?? 'system') + 1) % themes.length];
    if (next === 'system') delete root.dataset.theme;
    else root.dataset.theme = next;
    target.textContent = `colours: ${next}`;
    repaint();
  });
  document.querySelectorAll('button[data-span]').forEach((button) => button.addEventListener('click', () => {
    goTo(places[button.dataset.panel], Number(button.dataset.span));
    element('panels').scrollIntoView({ block: 'nearest' });
  }));
  overview.addEventListener('pointerdown', (event) => { overview.setPointerCapture(event.pointerId); slide(event); });
  overview.addEventListener('pointermove', (event) => { if (event.buttons) slide(event); });
  window.addEventListener('resize', lay);
  window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', repaint);
}

// Centres the shown part at the pointer in the overview.
function slide(event) {
  const share = (event.offsetX - LABELS) / view.width;
  const [middle, half] = [view.first + share * (view.last - view.first), (view.to - view.from) / 2];
  look(middle - half, middle + half);
}

function repaint() {
  readPalette();
  legend();
  show();
}

// Returns the position on the screen of a span in the panel `number`. This is for tests, and for
// use in a console.
function spot(number, span) {
  const { panel, painter, rows, canvas } = places[number];
  const box = canvas.getBoundingClientRect();
  const middle = (Math.max(panel.from[span], view.from) + Math.min(panel.to[span], view.to)) / 2;
  const top = panel.tops[panel.rowOf(span)] - rows.scrollTop + 8;
  return { x: box.left + painter.x(middle), y: box.top + top };
}

build();
sortWaits();
wire();
lay();
repaint();
step(1);
