// The status page: it asks this pod for the group's status every two seconds
// and shows it. Whatever comes is data: it is put in place with textContent and
// never as markup. Elements stay and change only where their content does, so
// that nothing jumps, keeps its selection and costs little at 1,000 partitions.
"use strict";
(() => {
  const EVERY = 2000; // ms between two answers
  const PATIENCE = 5000; // ms until a question counts as unanswered
  const BEHIND = 1000; // records of lag that are worth a colour
  const MANY = 200; // partitions from which on they are drawn smaller
  const NOTES = 5; // of the members that are shown
  const WINDOW = 10000; // ms over which rates are taken

  const $ = (id) => document.getElementById(id);
  const count = new Intl.NumberFormat("en");
  const rate = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
  const percent = new Intl.NumberFormat("en", { style: "percent", minimumFractionDigits: 1, maximumFractionDigits: 1 });
  const number = (n) => (n === null || n === undefined ? "–" : count.format(n));

  function text(node, value) {
    if (node.textContent !== value) node.textContent = value;
  }
  function attribute(node, name, value) {
    if (node.getAttribute(name) !== value) node.setAttribute(name, value);
  }
  function make(tag, className, parent) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (parent) parent.append(node);
    return node;
  }

  // keyed keeps one row a key in a table's body, in the order given.
  function keyed(body, build) {
    const rows = new Map();
    return (items, keyOf, fill) => {
      const seen = new Set();
      let at = body.firstElementChild;
      for (const item of items) {
        const key = keyOf(item);
        seen.add(key);
        let row = rows.get(key);
        if (!row) {
          row = build(key);
          rows.set(key, row);
        }
        if (row.node === at) at = at.nextElementSibling;
        else body.insertBefore(row.node, at);
        fill(row, item);
      }
      for (const [key, row] of rows) {
        if (seen.has(key)) continue;
        row.node.remove();
        rows.delete(key);
      }
    };
  }

  // ---- what a view says of a task

  const OPEN = new Set(["new", "restoring", "starting"]);

  function stateText(t) {
    const left = t.remaining > 0 ? " · " + count.format(t.remaining) + " left" : "";
    switch (t.state) {
      case "new":
      case "restoring": return "restoring" + left;
      case "running": return t.caught_up === false ? "catching up" + left : "running";
      case "frozen":
      case "closed": return "handing over";
      case "moving": return "moving to its next owner";
      case "unowned": return "nobody can own it";
      case "unknown": return "not known";
      case "stalled": return "stalled: it has work and does none of it";
      default: return t.state;
    }
  }
  const busy = (t) => OPEN.has(t.state) || t.state === "frozen" || t.state === "closed" || (t.state === "running" && t.caught_up === false);
  const restoring = (t) => OPEN.has(t.state) || (t.state === "running" && t.caught_up === false);
  const half = (t, topic) => t.topics[topic] || {};
  const lagOf = (t, topic) => half(t, topic).lag ?? null;

  // ---- members and their partitions

  function memberName(m) {
    return m.instance || m.id || "?";
  }

  function memberState(m) {
    if (m.reachable === false) return ["bad", "not reachable: " + (m.error || "no answer")];
    if (m.reachable === null) return ["", m.error || "was not asked"];
    if (m.ready === false) return ["warn", "not ready: " + (m.reasons || []).join("; ")];
    return ["ok", "ready"];
  }

  const NOBODY = Symbol("nobody"); // no text, which a member may be called

  const drawMembers = keyed($("members"), (key) => {
    const node = make("tr");
    if (key !== NOBODY) node.dataset.member = key;
    const head = make("th", "", node);
    head.scope = "row";
    const who = make("div", "who", head);
    const dot = make("span", "dot", who);
    dot.setAttribute("aria-hidden", "true");
    const name = make("span", "name", who);
    const label = make("span", "", name);
    const tag = make("span", "tag", name);
    const more = make("span", "more note", who);
    const tasks = make("td", "num", node);
    const chips = make("ul", "chips", make("td", "", node));
    return { node, dot, label, tag, more, tasks, chips, signature: null };
  });

  function chipOf(t, id, inputs) {
    const market = half(t, inputs.market_updates).owner === id;
    const note = half(t, inputs.notifications).owner === id;
    const what = market && note ? "both" : market ? "market" : "notifications";
    const words = { both: "both topics", market: "market updates only", notifications: "notifications only" };
    let look = "chip " + what;
    if (t.state === "unknown") look = "chip dim";
    else if (busy(t)) look += " busy";
    return { partition: t.partition, look, label: "partition " + t.partition + ", " + words[what] + ", " + stateText(t).replace(/ · .*/, "") };
  }

  function drawChips(row, chips) {
    const signature = chips.map((c) => c.partition + c.look + c.label).join("|");
    if (signature === row.signature) return;
    row.signature = signature;
    row.chips.replaceChildren(...chips.map((c) => {
      const li = make("li", c.look);
      li.textContent = c.partition;
      li.title = c.label;
      li.setAttribute("aria-label", c.label);
      li.dataset.partition = c.partition;
      return li;
    }));
  }

  function members(view) {
    const chips = new Map(view.members.map((m) => [m.id, []]));
    const nobody = [];
    for (const t of view.tasks) {
      const owners = new Set(Object.values(t.topics).map((h) => h.owner).filter(Boolean));
      for (const id of owners) {
        if (!chips.has(id)) chips.set(id, []);
        chips.get(id).push(chipOf(t, id, view.inputs));
      }
      if (owners.size === 0) nobody.push({ partition: t.partition, look: "chip lost", label: "partition " + t.partition + ", " + stateText(t) });
    }
    $("grid").classList.toggle("many", view.tasks.length > MANY);
    const rows = view.members.slice().sort((a, b) => memberName(a).localeCompare(memberName(b), "en", { numeric: true }));
    if (nobody.length > 0) rows.push({ id: NOBODY });
    drawMembers(rows, (m) => m.id, (row, m) => {
      if (m.id === NOBODY) {
        row.dot.className = "dot bad";
        text(row.label, "no owner");
        row.tag.hidden = true;
        text(row.more, "until the next generation");
        text(row.tasks, number(nobody.length));
        drawChips(row, nobody);
        return;
      }
      const [look, words] = memberState(m);
      row.dot.className = "dot " + look;
      text(row.label, memberName(m));
      row.label.title = m.id;
      text(row.tag, "this pod");
      row.tag.hidden = m.id !== view.pod;
      const more = m.address ? words + " · " + m.address : words;
      text(row.more, more);
      attribute(row.more, "title", more);
      text(row.tasks, number(chips.get(m.id).length));
      drawChips(row, chips.get(m.id));
    });
  }

  // ---- partitions

  const most = new Map(); // partition -> the most that was left of its restore

  function progress(t) {
    if (!restoring(t) || !(t.remaining > 0)) {
      most.delete(t.partition);
      return null;
    }
    const of = Math.max(most.get(t.partition) || 0, t.remaining);
    most.set(t.partition, of);
    return 1 - t.remaining / of;
  }

  const drawParts = keyed($("parts"), (key) => {
    const node = make("tr");
    node.dataset.partition = key;
    const head = make("th", "num", node);
    head.scope = "row";
    head.textContent = key;
    const owner = make("td", "owner", node);
    const state = make("td", "state", node);
    const dot = make("span", "dot", make("span", "pill", state));
    dot.setAttribute("aria-hidden", "true");
    const words = make("span", "", dot.parentNode);
    const done = make("span", "done", state);
    const bar = make("span", "", done);
    done.setAttribute("role", "progressbar");
    done.setAttribute("aria-label", "restored of partition " + key);
    done.setAttribute("aria-valuemin", "0");
    done.setAttribute("aria-valuemax", "100");
    const cells = [make("td", "num", node)];
    for (let side = 0; side < 2; side++) {
      cells.push(make("td", "num lag", node));
      for (let i = 0; i < 3; i++) cells.push(make("td", "num", node));
    }
    return { node, owner, dot, words, done, bar, cells };
  });

  function ownerText(t, names, inputs) {
    const name = (id) => (id ? names.get(id) || id : "nobody");
    const market = half(t, inputs.market_updates).owner;
    const note = half(t, inputs.notifications).owner;
    if ((market || "") === (note || "")) return name(note);
    return name(note) + " (market: " + name(market) + ")";
  }

  function fillPart(row, t, view, names) {
    const who = ownerText(t, names, view.inputs);
    text(row.owner, who);
    attribute(row.owner, "title", who);
    row.dot.className = "dot " + (t.owner === "" || t.state === "stalled" ? "bad" : busy(t) ? "warn" : t.state === "running" ? "ok" : "");
    text(row.words, stateText(t));
    const part = progress(t);
    row.done.hidden = part === null;
    if (part !== null) {
      row.bar.style.width = (100 * part).toFixed(1) + "%";
      attribute(row.done, "aria-valuenow", (100 * part).toFixed(0));
    }
    text(row.cells[0], number(t.symbols));
    [view.inputs.market_updates, view.inputs.notifications].forEach((topic, side) => {
      const h = half(t, topic);
      const cells = row.cells.slice(1 + 4 * side);
      text(cells[0], number(h.lag));
      cells[0].classList.toggle("some", h.lag >= BEHIND);
      text(cells[1], number(h.committed));
      text(cells[2], number(h.high_watermark));
      text(cells[3], number(h.leader));
    });
  }

  function partitions(view) {
    text($("h-market"), view.inputs.market_updates);
    text($("h-note"), view.inputs.notifications);
    const names = new Map(view.members.map((m) => [m.id, memberName(m)]));
    const lag = (t) => (lagOf(t, view.inputs.notifications) || 0) + (lagOf(t, view.inputs.market_updates) || 0);
    let tasks = view.tasks;
    if ($("only").checked) tasks = tasks.filter((t) => t.state !== "running" || t.caught_up === false || lag(t) >= BEHIND);
    if ($("sort").value === "lag") tasks = tasks.slice().sort((a, b) => lag(b) - lag(a) || a.partition - b.partition);
    text($("shown"), count.format(tasks.length) + " of " + count.format(view.tasks.length));
    drawParts(tasks, (t) => t.partition, (row, t) => fillPart(row, t, view, names));
  }

  // ---- joins

  const counts = new Map(); // pod -> {at, totals} of its last answers, the oldest first

  function totals(joins) {
    const sum = {};
    for (const [locality, results] of Object.entries(joins)) {
      sum[locality] = Object.values(results).reduce((a, b) => a + b, 0);
    }
    return sum;
  }

  // rates returns joins a second by locality, the pods' own added up, so that
  // one that comes or goes changes nothing of the others'; null while there is
  // nothing to compare with.
  function rates(view) {
    const at = Date.parse(view.at);
    let of = null;
    const here = new Set();
    for (const m of view.members) {
      if (!m.joins) continue;
      here.add(m.id);
      const now = totals(m.joins);
      let past = counts.get(m.id) || [];
      const last = past[past.length - 1];
      if (last && Object.entries(last.totals).some(([l, n]) => (now[l] || 0) < n)) past = []; // it has started anew
      if (past.length === 0 || past[past.length - 1].at < at) past.push({ at, totals: now });
      while (past.length > 2 && past[1].at <= at - WINDOW) past.shift();
      counts.set(m.id, past);
      const first = past[0];
      if (at <= first.at) continue;
      of = of || {};
      for (const l of Object.keys(now)) of[l] = (of[l] || 0) + ((now[l] - (first.totals[l] || 0)) * 1000) / (at - first.at);
    }
    for (const id of counts.keys()) if (!here.has(id)) counts.delete(id);
    return of;
  }

  const drawJoins = keyed($("joins"), (key) => {
    const node = make("tr");
    node.dataset.locality = key;
    const head = make("th", "", node);
    head.scope = "row";
    const cells = [0, 1, 2, 3, 4].map(() => make("td", "num", node));
    return { node, head, cells };
  });

  function joins(view) {
    const sums = totals(view.joins);
    const all = Object.values(sums).reduce((a, b) => a + b, 0);
    const perSecond = rates(view);
    drawJoins(Object.keys(view.joins).sort(), (l) => l, (row, l) => {
      const r = view.joins[l];
      text(row.head, l);
      text(row.cells[0], number(r.hit));
      text(row.cells[1], number(r.miss));
      text(row.cells[2], number(r.unavailable));
      text(row.cells[3], all > 0 ? percent.format(sums[l] / all) : "–");
      text(row.cells[4], perSecond ? rate.format(perSecond[l] || 0) : "–");
    });
    tile("local", all > 0 ? percent.format((sums.local || 0) / all) : "–", all > 0 ? count.format(sums.remote || 0) + " remote" : "no joins yet");
    tile("rate", perSecond ? rate.format(Object.values(perSecond).reduce((a, b) => a + b, 0)) : "–", "over the last 10 s");
  }

  // ---- hottest keys

  const drawHot = keyed($("hot"), () => {
    const node = make("tr");
    const head = make("th", "", node);
    head.scope = "row";
    const share = make("td", "num", node);
    const bar = make("span", "", make("div", "meter", make("td", "", node)));
    return { node, head, share, bar };
  });

  function hottest(view) {
    const symbol = (h) => (h.symbol_base64 !== undefined ? "base64:" + h.symbol_base64 : h.symbol);
    const top = view.hottest.length > 0 ? view.hottest[0].share : 1;
    // A symbol may be the text that another one, of bytes, is shown as.
    const key = (h) => (h.symbol_base64 !== undefined ? "bytes " : "text ") + symbol(h);
    drawHot(view.hottest, key, (row, h) => {
      text(row.head, symbol(h));
      attribute(row.head, "title", h.symbol_base64 !== undefined ? "not UTF-8: its bytes in base64" : symbol(h));
      text(row.share, percent.format(h.share));
      row.bar.style.width = (top > 0 ? (100 * h.share) / top : 0).toFixed(1) + "%";
    });
    $("no-hot").hidden = view.hottest.length > 0;
  }

  // ---- summary

  function tile(name, big, note, look) {
    const node = $("t-" + name);
    text(node, big);
    node.className = "big" + (look ? " " + look : "");
    text($("t-" + name + "-note"), note || "\u00a0");
  }

  function summary(view) {
    text($("group"), view.group);
    text($("generation"), number(view.generation));
    text($("strategy"), view.strategy);
    text($("pod"), view.pod);
    document.title = "joiner · " + view.group;
    $("problem").hidden = view.problem === "";
    text($("problem"), view.problem);

    const all = view.members.flatMap((m) => (m.notes || []).map((n) => memberName(m) + ": " + n)).sort();
    const notes = all.slice(0, NOTES);
    if (all.length > NOTES) notes.push("and " + (all.length - NOTES) + " more notes: /readyz of each member has its own");
    $("notes").hidden = notes.length === 0;
    if (notes.join("\n") !== $("notes").dataset.shown) {
      $("notes").dataset.shown = notes.join("\n");
      $("notes").replaceChildren(...notes.map((n) => {
        const li = make("li");
        li.textContent = n;
        return li;
      }));
    }

    const here = view.members.filter((m) => m.reachable).length;
    const away = view.members.filter((m) => m.reachable === false).length;
    const unready = view.members.filter((m) => m.ready === false).length;
    tile("members", number(view.members.length), away > 0 ? away + " not reachable" : unready > 0 ? unready + " not ready" : here + " ready", away > 0 ? "bad" : unready > 0 ? "warn" : "");

    const colocated = view.tasks.filter((t) => t.colocated).length;
    const nobody = view.tasks.filter((t) => t.owner === "").length;
    tile("colocated", colocated + " / " + view.tasks.length, nobody > 0 ? nobody + " without an owner" : "partitions of both topics", nobody > 0 ? "bad" : colocated < view.tasks.length ? "warn" : "");

    const sum = (topic) => view.tasks.reduce((n, t) => n + (lagOf(t, topic) || 0), 0);
    const unknown = view.tasks.filter((t) => lagOf(t, view.inputs.notifications) === null).length;
    const waiting = sum(view.inputs.notifications);
    tile("lag", count.format(waiting), unknown > 0 ? count.format(unknown) + (unknown === 1 ? " partition" : " partitions") + " not known" : count.format(sum(view.inputs.market_updates)) + " market updates", waiting >= BEHIND ? "warn" : "");

    const open = view.tasks.filter(restoring);
    const left = open.reduce((n, t) => n + (t.remaining || 0), 0);
    tile("restoring", number(open.length), left > 0 ? count.format(left) + " records left" : open.length > 0 ? "about to start" : "every table is complete", open.length > 0 ? "warn" : "");
  }

  // ---- asking

  let view = null;
  let answered = 0; // when, performance.now()
  let failed = "";
  let asking = false;

  function draw() {
    summary(view);
    members(view);
    partitions(view);
    hottest(view);
  }

  function link() {
    const age = Math.round((performance.now() - answered) / 1000);
    const stale = failed !== "";
    $("link").dataset.state = stale ? "stale" : view ? "live" : "waiting";
    text($("link-text"), stale ? "no answer" : view ? "live" : "connecting");
    text($("age"), view ? (stale ? "for " + age + " s" : "every " + EVERY / 1000 + " s") : "");
    document.body.classList.toggle("stale", stale && view !== null);
    $("stale").hidden = !stale;
    if (stale) {
      text($("stale"), "This pod does not answer (" + failed + "). " +
        (view ? "What is below is its last answer, of " + new Date(view.at).toLocaleTimeString() + "." : "It is asked again every " + EVERY / 1000 + " seconds."));
    }
  }

  async function ask() {
    if (asking || (document.hidden && view !== null)) return;
    asking = true;
    try {
      const response = await fetch("v1/status?scope=group", { cache: "no-store", redirect: "error", signal: AbortSignal.timeout(PATIENCE) });
      if (!response.ok) throw new Error("HTTP " + response.status);
      view = await response.json();
      answered = performance.now();
      failed = "";
      draw();
      joins(view);
      document.body.dataset.drawn = String(Number(document.body.dataset.drawn || 0) + 1);
    } catch (error) {
      failed = error.name === "TimeoutError" ? "nothing within " + PATIENCE / 1000 + " s" : error.message;
    } finally {
      asking = false;
    }
    link();
  }

  $("only").addEventListener("change", () => view && partitions(view));
  $("sort").addEventListener("change", () => view && partitions(view));
  document.addEventListener("visibilitychange", ask);
  setInterval(ask, EVERY);
  setInterval(link, 1000);
  ask();
})();
