//! One HTML page per run, with everything inside: the drawing, the explanation, and the history
//! itself, so that the reader can check it again. Nothing is loaded from elsewhere.

use std::fmt::Write;

use super::axis::TimeAxis;
use super::escape::{script, xml};
use super::headline::{capital, duration, headline, sentence};
use super::narrative;
use super::svg::{self, STYLE};
use super::timeline::Timeline;
use crate::check::Report;
use crate::check::resource::Tally;
use crate::history::History;
use crate::verdict::{Judgement, Outcome, Verdict};

/// The style sheet of pages.
pub(super) const PAGE: &str = include_str!("page.css");

/// The element of a page that contains its history.
const SCRIPT: &str = "<script type=\"application/jsonl\" id=\"history\">";

/// For each entry: the text in the drawing that shows its use, the shape, and the meaning.
const LEGEND: &[(&str, &str, &str)] = &[
    ("wait s", r#"<path class="wait s0" d="M2 9H32"/>"#, "waits"),
    ("rect class=\"p", r#"<rect class="p0" x="1" y="3" width="32" height="12" rx="3"/>"#, "holds"),
    (
        " late\" fill",
        r#"<rect class="s0" fill="url(#h0)" x="1" y="3" width="32" height="12" rx="3"/>"#,
        "holds by its own belief, past its deadline",
    ),
    ("d=\"M0 0L4 6H-4Z\"", r#"<path class="p0" d="M17 4L23 13H11Z"/>"#, "renews"),
    ("<title>refused<", r#"<circle class="hollow s0" cx="17" cy="9" r="4"/>"#, "is refused"),
    (
        "<title>no response<",
        "<circle class='hollow s0' cx='17' cy='9' r='7.5'/>\
         <text class='value' text-anchor='middle' x='17' y='13'>?</text>",
        "no response",
    ),
    (
        "learned that it is lost",
        r#"<path class="cross" d="M14 2V16M14 2L21 5L14 8"/>"#,
        "learns that it is lost",
    ),
    ("process ended", r#"<path class="cross" d="M12 4L22 14M22 4L12 14"/>"#, "process ended"),
    ("url(#hf)", r#"<rect fill="url(#hf)" x="1" y="1" width="32" height="16"/>"#, "under a fault"),
    ("class=\"band\"", r#"<rect class="band" x="1" y="1" width="32" height="16"/>"#, "two holders"),
    ("<title>read<", r#"<circle class="hollow s0" cx="17" cy="9" r="4"/>"#, "reads"),
    (
        "class=\"ok\"",
        "<g transform='translate(17 9)'><circle class='ok' r='7.5'/>\
         <path class='sign' d='M-3.4 .3L-1 2.8L3.6 -2.6'/></g>",
        "write accepted",
    ),
    (
        "class=\"bad\"",
        "<g transform='translate(17 9)'><path class='bad' d='M0 -9L9 0L0 9L-9 0Z'/>\
         <path class='sign' d='M0 -4.6V.8M0 4.2V4.3'/></g>",
        "write accepted, another one lost",
    ),
    (
        "class=\"grey\" r",
        "<g transform='translate(17 9)'><circle class='grey' r='7.5'/>\
         <path class='sign' d='M-3.6 3.6L3.6 -3.6'/></g>",
        "refused by the fence",
    ),
];

/// Draws a run as one self-contained page of HTML.
///
/// # Examples
///
/// ```
/// # let line = concat!(r#"{"scenario":"pause","about":"","lock":"l","server":"","seed":1,"#,
/// #     r#""expected":"holds","lanes":[]}"#);
/// # let history = tenure_lab::history::History::read(line.as_bytes())?;
/// use tenure_lab::{check, picture, verdict::Judgement};
///
/// let report = check::check(&history);
/// let page = picture::html(&history, &report, &Judgement::of(&history.header, &report));
/// assert!(page.starts_with("<!doctype html>"));
/// # anyhow::Ok(())
/// ```
pub fn html(history: &History, report: &Report, judgement: &Judgement) -> String {
    let title = xml(&capital(&headline(report)));
    let header = &history.header;
    let name = xml(&format!("{} on {}", header.scenario, header.lock));
    let mut body = format!(
        r#"<div class="top"><span class="brand">tenure lab</span><span>{name}</span>{}</div>
<h1>{title}</h1>
<p class="about">{}</p>
"#,
        badge(judgement),
        about(history)
    );
    body += &figure(history, report, judgement);
    body += &cards(report);
    body += &moments(history);
    body += &checks(report, judgement);
    body += "<footer><p>The whole history is inside this page. Check it again, without any server: \
             <code>tenure lab replay THIS.html</code></p></footer>\n";
    let timeline = Timeline::of(history, report);
    body += &crosshair(&timeline.axis);
    document(&format!("{title} · {name}"), &body, &embed(history))
}

/// A whole page around a body.
pub(super) fn document(title: &str, body: &str, tail: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
         style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n\
         <title>{title}</title>\n<style>\n{STYLE}{PAGE}</style>\n</head>\n<body>\n<main>\n{body}\
         </main>\n{tail}</body>\n</html>\n"
    )
}

/// The drawing of a run with its legend and caption, for a page of [`matrix`](super::matrix).
pub fn figure(history: &History, report: &Report, judgement: &Judgement) -> String {
    let drawing = svg::draw(&Timeline::of(history, report), None);
    let caption = xml(&narrative::caption(report, judgement.measured));
    format!("<figure>{drawing}{}<figcaption>{caption}</figcaption></figure>\n", legend(&drawing))
}

/// The class of the style sheet for a verdict.
pub(super) fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Holds => "good",
        Verdict::Overlap | Verdict::Broken => "harm",
        Verdict::Stuck | Verdict::Longer | Verdict::Forever | Verdict::Costly => "slow",
        Verdict::Inapplicable => "none",
    }
}

fn badge(judgement: &Judgement) -> String {
    let verdict = judgement.measured;
    let expected = match (&judgement.expected, judgement.outcome) {
        (Some(expected), Outcome::Differs) => format!("expected {expected}"),
        (_, outcome) => outcome.text().to_owned(),
    };
    format!(
        r#"<span class="badge {}" title="{}">{verdict} · {expected}</span>"#,
        class(verdict),
        xml(&judgement.why)
    )
}

fn about(history: &History) -> String {
    let header = &history.header;
    let mut parts = vec![xml(&sentence(&header.about))];
    let server = match header.server.as_str() {
        "" => String::new(),
        server => format!(" on {}", xml(server)),
    };
    parts.push(format!("Lock <code>{}</code>{server}.", xml(&header.lock)));
    if header.lease > 0 {
        parts.push(format!("Lease {}.", duration(header.lease)));
    }
    parts.retain(|part| !part.is_empty());
    parts.join(" ")
}

/// The legend, with those entries only that the drawing uses.
fn legend(drawing: &str) -> String {
    let mut items = String::new();
    for (class, shape, text) in LEGEND {
        if drawing.contains(class) {
            let _ignored = write!(
                items,
                "<li><svg class='t' viewBox='0 0 34 18' aria-hidden='true'>{shape}</svg>{text}</li>"
            );
        }
    }
    format!("<ul class=\"legend\">{items}</ul>")
}

/// The three registers side by side.
fn cards(report: &Report) -> String {
    let resource = &report.resource;
    let registers = [
        ("without a fence", &resource.plain),
        ("fence on write", &resource.write),
        ("fence on read and write", &resource.read_write),
    ];
    let used = |tally: &Tally| tally.accepted + tally.refused > 0;
    let mut text = String::new();
    for (name, tally) in registers.into_iter().filter(|(_, tally)| used(tally)) {
        let class = if tally.lost > 0 { "harm" } else { "good" };
        let refused = match tally.refused {
            0 => String::new(),
            refused => format!(", {refused} refused"),
        };
        let _ignored = write!(
            text,
            "<div class='card'><span>{name}</span><b class='{class}'>{} lost</b>\
             <span>of {} accepted updates{refused}</span></div>",
            tally.lost, tally.accepted
        );
    }
    if text.is_empty() { text } else { format!("<div class=\"cards\">{text}</div>\n") }
}

fn moments(history: &History) -> String {
    let mut text = String::from("<h2>What happened</h2>\n<ol class=\"story\">\n");
    for moment in narrative::moments(history) {
        let class = if moment.harm { " class=\"harm\"" } else { "" };
        let _ignored = writeln!(
            text,
            "<li><time>{:.3} s</time><span{class}>{}</span></li>",
            moment.at as f64 / 1e9,
            xml(&moment.text)
        );
    }
    text + "</ol>\n"
}

/// The results of all checks.
fn checks(report: &Report, judgement: &Judgement) -> String {
    let mut text = String::from("<details><summary>Checks</summary><table class=\"checks\">\n");
    for (name, result) in super::checks::lines(report, judgement) {
        let _ignored = writeln!(text, "<tr><td>{}</td><td>{}</td></tr>", name, xml(&result));
    }
    text + "</table></details>\n"
}

/// The history inside a page, as lines of JSON; none if it is not a page of the lab. Empty lines
/// replace the lines before it, so that an error names the line of the page.
pub fn embedded(page: &str) -> Option<String> {
    let begin = page.find(SCRIPT)? + SCRIPT.len();
    let lines = page[begin..].split("</script>").next()?;
    let before = page[..begin].matches('\n').count();
    Some("\n".repeat(before) + lines)
}

fn embed(history: &History) -> String {
    let mut lines = Vec::new();
    // Writing to memory cannot fail; a history without a scenario is left out.
    let _ignored = history.write(&mut lines);
    let lines = script(&String::from_utf8_lossy(&lines));
    format!("{SCRIPT}\n{lines}</script>\n")
}

/// A script that shows the time under the pointer. The page works without it.
fn crosshair(axis: &TimeAxis) -> String {
    let (left, right) = (svg::LEFT + 6.0, svg::END);
    let width = svg::WIDTH;
    let anchor = |&(at, position): &(u64, f64)| format!("[{},{position:.4}]", at as f64 / 1e9);
    let anchors: Vec<_> = axis.anchors().iter().map(anchor).collect();
    format!(
        "<script>\n(()=>{{const f=document.querySelector('figure'),s=f.querySelector('svg'),a=[{}],\
         c=document.createElement('div'),t=document.createElement('span');c.id='cross';c.append(t);\
         f.append(c);f.onmouseleave=()=>c.style.display='none';f.onmousemove=e=>{{\
         const b=s.getBoundingClientRect(),x=(e.clientX-b.left)/b.width*{width},\
         p=(x-{left})/({right}-{left});let i=1;while(i<a.length-1&&a[i][1]<p)i++;\
         const u=a[i-1],v=a[i];c.style.display=p<0||p>1||e.clientY>b.bottom?'none':'block';\
         c.style.left=e.clientX-f.getBoundingClientRect().left+f.scrollLeft+'px';\
         t.textContent=(u[0]+(p-u[1])/(v[1]-u[1])*(v[0]-u[0])).toFixed(3)+' s'}}}})()\n\
         </script>\n",
        anchors.join(",")
    )
}
