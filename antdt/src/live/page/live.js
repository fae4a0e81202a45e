"use strict";
(function () {
  var ROWS = 100, KEPT = 200, SVG = "http://www.w3.org/2000/svg";
  // Columns of a node's row, as the job sends them.
  var NAME = 0, ROLE = 1, STATE = 2, LIFE = 3, HOST = 4, SPEED = 5, BATCH = 6, SAMPLES = 7, STRAGGLER = 8;
  var nodes = new Map(), rows = new Map(), happened = [], median = null, limit = ROWS, token = null, workers = null;

  function byId(id) { return document.getElementById(id); }
  function make(name, text, kind) {
    var made = document.createElement(name);
    if (text !== undefined) { made.textContent = text; }
    if (kind) { made.className = kind; }
    return made;
  }
  function set(element, text) { if (element.textContent !== text) { element.textContent = text; } }
  function grouped(number) { return String(Math.round(number)).replace(/\B(?=(\d{3})+$)/g, "\u202f"); }
  function short(number) { return number >= 100 ? grouped(number) : String(Number(number.toPrecision(3))); }
  function clock(seconds) {
    var s = Math.max(0, Math.ceil(seconds)), pad = function (n) { return (n < 10 ? "0" : "") + n; };
    if (s < 60) { return s + " s"; }
    return s < 3600 ? Math.floor(s / 60) + ":" + pad(s % 60)
      : Math.floor(s / 3600) + ":" + pad(Math.floor(s / 60) % 60) + ":" + pad(s % 60);
  }

  // Bars of parts of a whole, with their legend.
  function strip(id, parts) {
    var bar = byId(id), legend = byId(id + "-legend"), sum = parts.reduce(function (sum, part) { return sum + part[1]; }, 0);
    while (bar.childElementCount < parts.length) {
      var colour = parts[bar.childElementCount][3];
      bar.appendChild(make("i", undefined, colour));
      var entry = make("span");
      entry.appendChild(make("i", undefined, colour));
      entry.appendChild(make("span"));
      legend.appendChild(entry);
    }
    var texts = parts.map(function (part, at) {
      var percent = sum > 0 ? 100 * part[1] / sum : 0, text = part[0] + " " + part[2];
      bar.children[at].style.width = percent + "%";
      legend.children[at].hidden = part[1] === 0;
      set(legend.children[at].lastChild, text);
      return text;
    });
    bar.setAttribute("aria-label", texts.join(", "));
  }

  function tiles(entries) {
    var list = byId("tiles");
    entries.forEach(function (entry, at) {
      if (!list.children[at]) {
        var tile = make("div");
        tile.appendChild(make("dt"));
        tile.appendChild(make("dd"));
        list.appendChild(tile);
      }
      set(list.children[at].firstChild, entry[0]);
      set(list.children[at].lastChild, entry[1]);
    });
  }

  function header(state) {
    var now = state.progress, total = 0, training = 0;
    state.goodput.forEach(function (part) { total += part[1]; if (part[0] === "training") { training = part[1]; } });
    set(byId("job"), state.job);
    document.title = (now.expected ? Math.floor(100 * now.committed / now.expected) + " % · " : "") + state.job;
    byId("dry").hidden = !state.dry_run;
    var over = byId("outcome");
    over.hidden = !state.outcome;
    if (state.outcome) {
      over.className = state.outcome.kind === "completed" ? "good" : "bad";
      set(over, state.outcome.kind + (state.outcome.why ? ": " + state.outcome.why : ""));
    }
    tiles([
      ["time", clock(state.time_s)],
      ["left, about", now.remaining_s === null || state.outcome ? "–" : clock(now.remaining_s)],
      ["samples/s", short(Math.max(0, now.samples_per_second))],
      ["step", grouped(now.step)],
      ["loss", now.loss === null ? "–" : now.loss.toFixed(4)],
      ["workers", now.members + " of " + now.workers],
      ["time in training", total > 0 ? Math.floor(100 * training / total) + " %" : "–"],
      ["mode", state.mode],
      ["policy", state.policy],
      ["data", state.data]
    ]);
    strip("samples", [
      ["committed", now.committed, grouped(now.committed) + (now.expected ? " of " + grouped(now.expected) : ""), "c2"],
      ["leased", now.leased, grouped(now.leased) + " in " + grouped(now.shards.leased) + " shards", "c0"],
      ["waiting", now.waiting, grouped(now.waiting), "rest"],
      ["unreadable", now.quarantined, grouped(now.quarantined), "c1"],
      ["lost", now.lost, grouped(now.lost), "c3"]
    ]);
    if (workers === null && now.workers) { workers = now.workers; byId("workers").value = now.workers; }
    set(byId("deaths"), state.deaths.filter(function (of) { return of.lost || of.restarted; }).map(function (of) {
      return of.role + "s lost: " + grouped(of.lost) + ", started again: " + grouped(of.restarted);
    }).concat(state.undone ? ["committed samples undone: " + grouped(state.undone)] : []).join("; ") || "No node was lost.");
  }

  function kind(row) {
    if (row[STATE] === "lost") { return "bad"; }
    return row[STRAGGLER] || row[STATE] === "starting" || row[STATE] === "leaving" ? "note" : row[STATE] === "running" ? "good" : "";
  }
  function fill(element, row) {
    var speed = row[SPEED], cells = element.children;
    set(cells[0], row[NAME]);
    set(cells[1].firstChild, row[STRAGGLER] ? "straggler" : row[STATE]);
    cells[1].firstChild.className = "state " + kind(row);
    set(cells[2], speed === null ? "" : short(speed));
    set(cells[3], speed === null || !median || row[ROLE] !== "worker" ? "" : Math.round(100 * speed / median) + " %");
    set(cells[4], row[BATCH] === null ? "" : grouped(row[BATCH]));
    set(cells[5], row[ROLE] === "worker" ? grouped(row[SAMPLES]) : "");
    set(cells[6], String(row[LIFE]));
    set(cells[7], row[HOST] || "");
    cells[8].firstChild.hidden = !token || row[ROLE] !== "worker" || row[STATE] !== "running";
  }
  function element(name) {
    var made = make("tr"), again = make("button", "restart");
    for (var at = 0; at < 9; at++) { made.appendChild(make("td", undefined, at >= 2 && at <= 6 ? "n" : "")); }
    made.children[1].appendChild(make("span"));
    made.children[8].appendChild(again);
    again.addEventListener("click", function () {
      if (confirm("Kill " + name + " and start it again?")) { ask("restart", { node: name }); }
    });
    return made;
  }
  // Nodes that need a look come first, and the others in their order.
  function order(a, b) {
    var rank = function (row) { return row[STATE] === "lost" ? 0 : row[STRAGGLER] ? 1 : row[STATE] === "starting" ? 2 : row[STATE] === "left" ? 4 : 3; };
    return rank(a) - rank(b) || a.at - b.at;
  }
  function table() {
    var all = Array.from(nodes.values()).sort(order), body = byId("nodes").tBodies[0], stages = {};
    all.forEach(function (row) { stages[row[STATE]] = (stages[row[STATE]] || 0) + 1; });
    set(byId("stages"), Object.keys(stages).map(function (stage) { return stages[stage] + " " + stage; }).join(", "));
    var shown = all.slice(0, limit), kept = new Set(shown.map(function (row) { return row[NAME]; }));
    rows.forEach(function (made, name) { if (!kept.has(name)) { made.remove(); rows.delete(name); } });
    shown.forEach(function (row, at) {
      var made = rows.get(row[NAME]);
      if (!made) { made = element(row[NAME]); rows.set(row[NAME], made); }
      fill(made, row);
      if (body.children[at] !== made) { body.insertBefore(made, body.children[at] || null); }
    });
    byId("more").hidden = all.length <= limit;
    set(byId("more"), "Show all " + all.length);
  }

  function line(points) {
    var chart = byId("loss"), width = chart.clientWidth || 720, left = 52, right = width - 6, top = 10, bottom = 152;
    chart.setAttribute("viewBox", "0 0 " + width + " 180");
    chart.replaceChildren();
    if (points.length < 2) { return; }
    var draw = function (name, attributes, text) {
      var part = document.createElementNS(SVG, name);
      Object.keys(attributes).forEach(function (key) { part.setAttribute(key, attributes[key]); });
      if (text !== undefined) { part.textContent = text; }
      chart.appendChild(part);
    };
    var losses = points.map(function (point) { return point[1]; }), from = points[0][0], to = points[points.length - 1][0];
    var low = Math.min.apply(null, losses), high = Math.max.apply(null, losses), span = high - low || 1;
    var x = function (time) { return left + (right - left) * (time - from) / (to - from || 1); };
    var y = function (loss) { return bottom - (bottom - top) * (loss - low) / span; };
    [low, low + span / 2, low + span].forEach(function (loss) {
      draw("line", { x1: left, x2: right, y1: y(loss), y2: y(loss), "class": "grid" });
      draw("text", { x: left - 8, y: y(loss) + 4, "text-anchor": "end" }, String(Number(loss.toPrecision(3))));
    });
    draw("text", { x: left, y: bottom + 20 }, clock(from));
    draw("text", { x: right, y: bottom + 20, "text-anchor": "end" }, clock(to));
    var curve = function (values, kind) {
      var at = points.map(function (point, i) { return x(point[0]).toFixed(1) + "," + y(values[i]).toFixed(1); });
      draw("polyline", { points: at.join(" "), "class": "curve loss " + kind });
    };
    // The mean over the last tenth of the curve, so that its course is seen through the noise of single batches.
    var share = Math.min(1, 10 / losses.length), mean = losses[0];
    curve(losses, "faint");
    curve(losses.map(function (loss) { mean += share * (loss - mean); return mean; }), "");
  }

  function events() {
    var body = byId("happened").tBodies[0];
    body.replaceChildren.apply(body, happened.slice().reverse().map(function (it) {
      var made = make("tr"), what = make("td");
      made.appendChild(make("td", it[1].toFixed(1) + " s", "n"));
      what.appendChild(it[5] ? make("code", it[2]) : make("span", it[2], it[2] === "lost" ? "state bad" : ""));
      made.appendChild(what);
      made.appendChild(make("td", it[3]));
      made.appendChild(make("td", it[4]));
      return made;
    }));
  }

  function show(state) {
    if (state.whole) { nodes.clear(); happened = []; }
    median = state.median_speed;
    state.nodes.forEach(function (row) {
      var known = nodes.get(row[NAME]);
      row.at = known ? known.at : nodes.size;
      nodes.set(row[NAME], row);
    });
    header(state);
    table();
    line(state.loss);
    if (state.happened.length || state.whole) {
      happened = happened.concat(state.happened).slice(-KEPT);
      events();
    }
    var newest = state.evaluation;
    set(byId("evaluation"), newest ? state.evaluations + (state.evaluations === 1 ? " evaluation," : " evaluations; the newest,") + " at " + clock(newest.time_s) + ", on " + grouped(newest.samples) + " samples: " +
      Object.keys(newest.metrics).map(function (name) { return name + " " + newest.metrics[name].toFixed(4); }).join(", ") : "Mean over the samples of recent steps.");
    strip("goodput", state.goodput.map(function (part, at) {
      return [part[0].replace("_", " "), part[1], clock(part[1]), "c" + [2, 0, 3, 7, 1][at]];
    }));
    link(state.outcome ? "over" : "live", state.outcome ? "note" : "good");
  }

  function link(text, kind) { set(byId("link"), text); byId("link").className = kind; }
  function listen() {
    var source = new EventSource("events");
    source.onmessage = function (event) {
      var state = JSON.parse(event.data);
      show(state);
      // Nothing comes any more, which is no fault of the connection.
      if (state.outcome) { source.close(); }
    };
    source.onerror = function () {
      link("no connection", "bad");
      // A browser tries again by itself, unless it was refused.
      if (source.readyState === EventSource.CLOSED) { setTimeout(listen, 3000); }
    };
  }

  function said(text, bad) { set(byId("said"), text); byId("said").className = bad ? "hint bad" : "hint"; }
  function ask(what, body) {
    return fetch("api/" + what, {
      method: "POST", cache: "no-store", credentials: "omit",
      headers: { "Content-Type": "application/json", "Authorization": "Bearer " + token },
      body: JSON.stringify(body)
    }).then(function (answer) {
      return answer.json().then(function (told) {
        if (answer.status === 401) { lock(null); }
        said(told.done || told.error, !answer.ok);
      });
    }).catch(function () { said("the job did not answer", true); });
  }
  function lock(given) {
    token = given;
    byId("locked").hidden = byId("unlock").hidden = !!token;
    byId("buttons").hidden = !token;
    byId("token").value = "";
    table();
  }
  byId("unlock").addEventListener("submit", function (event) {
    event.preventDefault();
    var given = byId("token").value.trim();
    if (given) { lock(given); said("", false); }
  });
  byId("scale").addEventListener("click", function () { ask("scale", { workers: Number(byId("workers").value) }); });
  byId("checkpoint").addEventListener("click", function () { ask("checkpoint", {}); });
  byId("stop").addEventListener("click", function () { if (confirm("Stop the job?")) { ask("stop", {}); } });
  byId("more").addEventListener("click", function () { limit = Infinity; table(); });
  // In the fragment the token is sent to no server; out of the address it is in no history either.
  var given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) { history.replaceState(null, "", location.pathname); }
  lock(given);
  listen();
})();
