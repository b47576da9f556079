//! The lanes of the timeline: clients with their holds, servers with their leases, and the
//! registers of the resource.

use std::collections::HashMap;

use super::escape::{short, xml};
use super::svg::{LEFT, SvgCanvas, WIDTH, n, width};
use super::timeline::WriteOutcome;
use super::timeline::{ClientLane, HoldBar, Mark, RegisterLane, ServerLane, Timeline, Update};
use crate::history::Register;

/// Draws all lanes, downwards from the current position of the canvas.
pub(super) fn draw(canvas: &mut SvgCanvas<'_>, timeline: &Timeline<'_>) {
    for (at, client) in timeline.clients.iter().enumerate() {
        one_client(canvas, client, at % 6, timeline.many_keys);
    }
    if timeline.left_out > 0 {
        let text = format!("and {} more", timeline.left_out);
        canvas.text("sub", 24.0, canvas.y + 14.0, &text);
        canvas.y += 22.0;
    }
    let names: Vec<&str> = timeline.clients.iter().map(|client| client.name).collect();
    for server in &timeline.servers {
        one_server(canvas, server, &names);
    }
    for row in &timeline.registers {
        one_register(canvas, row);
    }
}

fn one_client(canvas: &mut SvgCanvas<'_>, client: &ClientLane<'_>, colour: usize, many_keys: bool) {
    let y = canvas.y;
    // Locks that one client holds at the same time are drawn below each other.
    let (rows, depth) = hold_rows(client);
    let thick = match depth {
        0 | 1 => 22.0,
        2..=4 => 15.0,
        _ => 6.0,
    };
    let high = (depth as f64 * (thick + 2.0) + 22.0).max(46.0);
    canvas.line("rule", 20.0, y, WIDTH - 20.0, y);
    canvas.rect(&format!("p{colour}"), 24.0, y + 17.0, 11.0, 11.0, 3.0);
    canvas.text("name", 43.0, y + 27.5, &short(client.name, 14));
    draw_outages(canvas, &client.outages, high);
    for &(from, to) in &client.waits {
        let (x, to) = (canvas.x(from), canvas.x(to));
        if to - x > 2.0 {
            canvas.line(&format!("wait s{colour}"), x, y + 23.0, to, y + 23.0);
        }
    }
    for (bar, row) in client.holds.iter().zip(rows) {
        let top = y + 12.0 + row as f64 * (thick + 2.0);
        one_bar(canvas, bar, (top, thick), colour, many_keys);
    }
    let mut drawn: HashMap<(Mark, i64), ()> = HashMap::new();
    for &(at, mark) in &client.marks {
        // Marks at the same position look like one.
        if drawn.insert((mark, (canvas.x(at) / 4.0) as i64), ()).is_none() {
            one_mark(canvas, canvas.x(at), y + 23.0, mark, colour);
        }
    }
    canvas.y += high;
}

/// The row of each hold inside its lane, and how many rows there are.
fn hold_rows(client: &ClientLane<'_>) -> (Vec<usize>, usize) {
    let mut ends: Vec<u64> = Vec::new();
    let mut rows = Vec::with_capacity(client.holds.len());
    for bar in &client.holds {
        let row = ends.iter().position(|&end| end <= bar.from).unwrap_or(ends.len()).min(30);
        if row == ends.len() {
            ends.push(bar.to);
        }
        ends[row] = bar.to;
        rows.push(row);
    }
    (rows, ends.len())
}

/// Hatches the spans in which a lane is stopped or cut off.
fn draw_outages(canvas: &mut SvgCanvas<'_>, spans: &[(u64, u64)], high: f64) {
    for &(from, to) in spans {
        let (x, to) = (canvas.x(from), canvas.x(to));
        canvas.add(format_args!(
            r#"<rect fill="url(#hf)" x="{}" y="{}" width="{}" height="{}"/>"#,
            n(x),
            n(canvas.y),
            n((to - x).max(2.0)),
            n(high)
        ));
    }
}

/// One hold: hatched as a whole, and solid where it is inside its deadlines.
fn one_bar(
    canvas: &mut SvgCanvas<'_>,
    bar: &HoldBar<'_>,
    (y, thick): (f64, f64),
    colour: usize,
    many_keys: bool,
) {
    let (x, to) = (canvas.x(bar.from), canvas.x(bar.to));
    let token = bar.token.map(|token| format!("token {token}")).unwrap_or_default();
    let token = if token.is_empty() { "no token" } else { &token };
    let title = xml(&format!("{}: {token}", bar.key));
    canvas.add(format_args!("<g><title>{title}</title>"));
    let late = bar.inside.last().map_or(bar.from, |&(_, end)| end);
    if late < bar.to {
        let from = canvas.x(late);
        let (left, top, across) = (n(from), n(y), n((to - from).max(2.5)));
        canvas.add(format_args!(
            "<rect class=\"s{colour} late\" fill='url(#h{colour})' x='{left}' y='{top}' \
             width='{across}' height='{thick}' rx='4'/>"
        ));
    }
    let mut solid = 0.0;
    for &(from, to) in &bar.inside {
        let (from, to) = (canvas.x(from), canvas.x(to));
        solid = if solid == 0.0 { to - from } else { solid };
        canvas.rect(&format!("p{colour}"), from, y, (to - from).max(2.5), thick, 4.0);
    }
    canvas.add("</g>");
    for &at in bar.renewed.iter().take(200) {
        let (x, y) = (n(canvas.x(at)), n(y + thick + 2.0));
        canvas.add(format_args!(
            r#"<path class="p{colour}" transform="translate({x} {y})" d="M0 0L4 6H-4Z"/>"#
        ));
    }
    let digits = bar.token.map(short_token).unwrap_or_default();
    let token = format!("token {digits}");
    let fits = !digits.is_empty() && width(&token, 12.0) + 14.0 < solid;
    let token = if fits { token } else { digits };
    let with_key = format!("{token} · {}", short(bar.key, 24));
    let label = if many_keys && width(&with_key, 12.0) + 14.0 < solid { with_key } else { token };
    let fits = thick > 12.0 && width(&label, 12.0) + 12.0 < solid;
    if !label.is_empty() && fits {
        canvas.text("token", x + 7.0, y + thick / 2.0 + 4.5, &label);
    }
}

/// A short form of a token: of a long one the end, in which tokens differ.
pub(super) fn short_token(token: u64) -> String {
    let text = token.to_string();
    if text.len() > 8 { format!("…{}", &text[text.len() - 5..]) } else { text }
}

fn one_mark(canvas: &mut SvgCanvas<'_>, x: f64, y: f64, mark: Mark, colour: usize) {
    let (name, shape) = match mark {
        Mark::Refused => ("refused", format!(r#"<circle class="hollow s{colour}" r="4"/>"#)),
        Mark::NoResponse => {
            let circle = format!(r#"<circle class="hollow s{colour}" r="7.5"/>"#);
            let text = r#"<text class="value" text-anchor="middle" y="4">?</text>"#;
            ("no response", format!("{circle}{text}"))
        }
        Mark::Lost => {
            let flag =
                r#"<path class="cross" d="M0 -15V15"/><path class="cross" d="M0 -15L8 -11L0 -7"/>"#;
            ("learned that it is lost", flag.to_owned())
        }
        Mark::Ended => {
            let cross = r#"<path class="cross" stroke-width="3" d="M-6 -6L6 6M6 -6L-6 6"/>"#;
            ("process ended", cross.to_owned())
        }
    };
    let (x, y) = (n(x), n(y));
    canvas
        .add(format_args!(r#"<g transform="translate({x} {y})"><title>{name}</title>{shape}</g>"#));
}

fn one_server(canvas: &mut SvgCanvas<'_>, server: &ServerLane<'_>, names: &[&str]) {
    let y = canvas.y;
    canvas.line("rule", 20.0, y, WIDTH - 20.0, y);
    canvas.text("name", 24.0, y + 17.5, &short(server.name, 16));
    canvas.text("sub", 24.0, y + 31.0, "lease on the server");
    draw_outages(canvas, &server.outages, 38.0);
    for &(holder, from, to) in &server.leases {
        let colour = holder.and_then(|holder| names.iter().position(|name| *name == holder));
        let class = colour.map_or("grey".to_owned(), |colour| format!("p{}", colour % 6));
        let (x, to) = (canvas.x(from), canvas.x(to));
        let wide = (to - x).max(2.0);
        canvas.rect(&class, x, y + 12.0, wide, 14.0, 7.0);
        let label = short(holder.unwrap_or("held"), 24);
        if width(&label, 10.5) + 16.0 < wide {
            let (x, y, label) = (n(x + 8.0), n(y + 22.7), xml(&label));
            canvas.add(format_args!(
                r#"<text class="token" style="font-size:10.5px" x="{x}" y="{y}">{label}</text>"#
            ));
        }
    }
    canvas.y += 38.0;
}

fn one_register(canvas: &mut SvgCanvas<'_>, row: &RegisterLane) {
    let y = canvas.y;
    canvas.line("rule", 20.0, y, WIDTH - 20.0, y);
    let name = match row.register {
        Register::Plain => "no fence",
        Register::Write => "fence: write",
        Register::ReadWrite => "fence: read+write",
    };
    canvas.text("name", 24.0, y + 19.0, name);
    summary(canvas, row, y + 33.5);
    let mut seen: HashMap<(Option<WriteOutcome>, i64, usize), ()> = HashMap::new();
    // Many updates in one lane become dots without figures.
    let dense = row.updates.len() > 24;
    let crowded = |canvas: &SvgCanvas<'_>, at: u64| {
        let x = canvas.x(at);
        let reads = row.updates.iter().filter_map(|update| update.read).map(|(at, _)| at);
        let writes = row.updates.iter().filter_map(|update| update.wrote).map(|(at, _)| at);
        reads.chain(writes).any(|other| other != at && (0.0..32.0).contains(&(canvas.x(other) - x)))
    };
    for update in &row.updates {
        let at =
            update.wrote.map(|(at, _)| at).or(update.read.map(|(at, _)| at)).unwrap_or_default();
        let cell = (canvas.x(at) / 5.0) as i64;
        let key = (update.wrote.map(|(_, outcome)| outcome), cell, update.client.unwrap_or(9) % 3);
        if seen.insert(key, ()).is_none() {
            let figure = !dense && !crowded(canvas, at);
            one_update(canvas, update, y + 21.0, dense, figure);
        }
    }
    canvas.y += 42.0;
}

/// What became of the updates, in words below the name of the register.
fn summary(canvas: &mut SvgCanvas<'_>, row: &RegisterLane, y: f64) {
    let tally = &row.tally;
    let (class, text) = match (tally.lost, tally.refused) {
        (0, 0) => ("sub", "every update kept".to_owned()),
        (0, refused) => ("sub okt", format!("{refused} refused, 0 lost")),
        (lost, _) => ("sub badt", format!("{lost} of {} lost", tally.accepted)),
    };
    canvas.text(class, 24.0, y, &text);
}

fn one_update(canvas: &mut SvgCanvas<'_>, update: &Update, middle: f64, dense: bool, figure: bool) {
    let colour = update.client.map(|client| client % 6);
    // Updates of different clients are drawn beside each other.
    let y = middle + (update.client.unwrap_or(1) % 3) as f64 * 7.0 - 7.0;
    let stroke = colour.map_or("rule".to_owned(), |colour| format!("s{colour}"));
    if let (Some((read, _)), Some((wrote, _))) = (update.read, update.wrote) {
        let (x, to, y) = (n(canvas.x(read)), n(canvas.x(wrote)), n(y));
        canvas.add(format_args!(
            r#"<path class="{stroke}" stroke-width="1.8" opacity=".7" d="M{x} {y}H{to}"/>"#
        ));
    }
    if let Some((at, refused)) = update.read.filter(|(_, refused)| !dense || *refused) {
        let (x, y) = (n(canvas.x(at)), n(y));
        let class = if refused { "hollow" } else { &format!("hollow {stroke}") };
        canvas.add(format_args!(
            r#"<circle class="{class}" cx="{x}" cy="{y}" r="3.6"><title>read</title></circle>"#
        ));
        if refused {
            draw_outcome(canvas, &x, &y, WriteOutcome::Refused, "read refused by the fence");
        }
    }
    let Some((at, outcome)) = update.wrote else { return };
    let title = match outcome {
        WriteOutcome::Accepted => format!("wrote {}, accepted", update.value),
        WriteOutcome::Stale => format!("wrote {}, and another update is lost", update.value),
        WriteOutcome::Refused => format!("write of {} refused by the fence", update.value),
    };
    let x = canvas.x(at);
    if dense && outcome == WriteOutcome::Accepted {
        let (x, y) = (n(x), n(y));
        return canvas.add(format_args!(
            r#"<circle class="ok" cx="{x}" cy="{y}" r="3.2"><title>{title}</title></circle>"#
        ));
    }
    draw_outcome(canvas, &n(x), &n(y), outcome, &title);
    if figure && outcome != WriteOutcome::Refused && x + 30.0 < WIDTH && x > LEFT {
        canvas.text("value", x + 10.0, y + 4.0, &format!("={}", update.value));
    }
}

fn draw_outcome(canvas: &mut SvgCanvas<'_>, x: &str, y: &str, outcome: WriteOutcome, title: &str) {
    let shape = match outcome {
        WriteOutcome::Accepted => {
            r#"<circle class="ok" r="7.5"/><path class="sign" d="M-3.4 .3L-1 2.8L3.6 -2.6"/>"#
        }
        WriteOutcome::Stale => {
            "<path class=\"bad\" d='M0 -10L10 0L0 10L-10 0Z'/>\
             <path class='sign' d='M0 -4.6V.8M0 4.2V4.3'/>"
        }
        WriteOutcome::Refused => {
            r#"<circle class="grey" r="7.5"/><path class="sign" d="M-3.6 3.6L3.6 -3.6"/>"#
        }
    };
    canvas.add(format_args!(
        r#"<g transform="translate({x} {y})"><title>{title}</title>{shape}</g>"#
    ));
}
