//! Line charts as SVG: panels side by side, logarithmic vertical axes.

use std::fmt::Write as _;

const PANEL_WIDTH: f64 = 330.0;
const PANEL_HEIGHT: f64 = 320.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 70.0;
const BETWEEN: f64 = 50.0;
const BELOW: f64 = 90.0;
/// Titles and legends have room beside a single panel, too.
const WIDTH_MIN: f64 = 860.0;

/// Colours that people with colour blindness can distinguish (Okabe and Ito 2008).
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"];

/// A line: one value per place on the horizontal axis.
pub(crate) struct Line {
    /// Lines with equal labels, in any panel, have one colour and one entry in the legend.
    pub(crate) label: String,
    /// A tail: thinner and dashed.
    pub(crate) dashed: bool,
    /// NaN: there is none.
    pub(crate) values: Vec<f64>,
}

/// One diagram.
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) lines: Vec<Line>,
    /// A foreign value to compare with.
    pub(crate) reference: Option<(String, f64)>,
}

/// Several diagrams with a common horizontal axis.
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) subtitle: String,
    pub(crate) vertical: String,
    pub(crate) horizontal: String,
    /// Labels of the places on the horizontal axis.
    pub(crate) places: Vec<String>,
    pub(crate) panels: Vec<Panel>,
    /// Each panel has a vertical axis of its own; the title gives its unit.
    pub(crate) own_axes: bool,
}

/// Powers of ten that enclose all values.
struct Decades {
    least: i32,
    most: i32,
}

impl Decades {
    fn of(panels: &[Panel]) -> Decades {
        let lines = panels.iter().flat_map(|panel| &panel.lines).flat_map(|line| &line.values);
        let references = panels.iter().filter_map(|panel| panel.reference.as_ref().map(|(_, at)| at));
        let values = lines.chain(references).copied().filter(|value| *value > 0.0);
        let (least, most) =
            values.fold((f64::MAX, f64::MIN), |(least, most), value| (least.min(value), most.max(value)));
        if least > most {
            return Decades { least: 0, most: 1 };
        }
        #[expect(clippy::cast_possible_truncation, reason = "logarithms of times are small")]
        let (least, most) = (least.log10().floor() as i32, most.log10().ceil() as i32);
        Decades { least, most: most.max(least + 1) }
    }

    /// Height of a value in a panel, from its top.
    fn height(&self, value: f64) -> f64 {
        let least = f64::from(self.least);
        let part = (value.max(f64::MIN_POSITIVE).log10() - least) / (f64::from(self.most) - least);
        PANEL_HEIGHT * (1.0 - part.clamp(0.0, 1.0))
    }
}

/// Draws.
pub(crate) fn svg(chart: &Chart) -> String {
    let common = Decades::of(&chart.panels);
    let labels = labels(chart);
    let panels = count(chart.panels.len());
    let width = (LEFT + panels * (PANEL_WIDTH + BETWEEN) + 20.0).max(WIDTH_MIN);
    let columns = legend_columns(width);
    let legend_rows = count(labels.len().div_ceil(columns));
    let height = TOP + PANEL_HEIGHT + BELOW + 18.0 * legend_rows;
    let mut out = String::new();
    let _ = writeln!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">"#
    );
    let _ = writeln!(out, r#"<rect width="{width}" height="{height}" fill="white"/>"#);
    text(&mut out, LEFT, 24.0, "start", 16, &chart.title);
    text(&mut out, LEFT, 42.0, "start", 11, &chart.subtitle);
    for (i, panel) in chart.panels.iter().enumerate() {
        let _ = writeln!(
            out,
            r#"<g transform="translate({} {TOP})">"#,
            LEFT + count(i) * (PANEL_WIDTH + BETWEEN)
        );
        let own = chart.own_axes.then(|| Decades::of(std::slice::from_ref(panel)));
        draw(&mut out, chart, panel, own.as_ref().unwrap_or(&common), &labels);
        out.push_str("</g>\n");
    }
    legend(&mut out, &labels, columns);
    out.push_str("</svg>\n");
    out
}

fn labels(chart: &Chart) -> Vec<&str> {
    let mut labels: Vec<&str> = Vec::new();
    for line in chart.panels.iter().flat_map(|panel| &panel.lines) {
        if !labels.contains(&line.label.as_str()) {
            labels.push(&line.label);
        }
    }
    labels
}

fn colour(labels: &[&str], label: &str) -> &'static str {
    let place = labels.iter().position(|known| *known == label).unwrap_or(0);
    COLOURS[place % COLOURS.len()]
}

fn draw(out: &mut String, chart: &Chart, panel: &Panel, decades: &Decades, labels: &[&str]) {
    text(out, PANEL_WIDTH / 2.0, -8.0, "middle", 13, &panel.title);
    for decade in decades.least..=decades.most {
        let value = 10f64.powi(decade);
        let y = decades.height(value);
        let _ = writeln!(out, r##"<path d="M0 {y:.1}H{PANEL_WIDTH}" stroke="#ddd"/>"##);
        text(out, -6.0, y + 4.0, "end", 11, &value.to_string());
    }
    let _ =
        writeln!(out, r##"<rect width="{PANEL_WIDTH}" height="{PANEL_HEIGHT}" fill="none" stroke="#888"/>"##);
    let step = PANEL_WIDTH / count(chart.places.len().max(1));
    let x = |place: usize| step * (count(place) + 0.5);
    for (i, place) in chart.places.iter().enumerate() {
        text(out, x(i), PANEL_HEIGHT + 16.0, "middle", 11, place);
    }
    text(out, PANEL_WIDTH / 2.0, PANEL_HEIGHT + 36.0, "middle", 12, &chart.horizontal);
    let _ = write!(out, r#"<g transform="translate(-42 {}) rotate(-90)">"#, PANEL_HEIGHT / 2.0);
    text(out, 0.0, 0.0, "middle", 12, &chart.vertical);
    out.push_str("</g>\n");
    if let Some((label, value)) = &panel.reference {
        let y = decades.height(*value);
        let _ =
            writeln!(out, r##"<path d="M0 {y:.1}H{PANEL_WIDTH}" stroke="#888" stroke-dasharray="2 3"/>"##);
        text(out, PANEL_WIDTH - 4.0, y - 4.0, "end", 11, label);
    }
    for line in &panel.lines {
        let colour = colour(labels, &line.label);
        let points: Vec<String> = line
            .values
            .iter()
            .enumerate()
            .filter(|(_, value)| !value.is_nan())
            .map(|(i, value)| format!("{:.1},{:.1}", x(i), decades.height(*value)))
            .collect();
        let (width, dashes) = if line.dashed { ("1", r#" stroke-dasharray="4 3""#) } else { ("2", "") };
        let _ = writeln!(
            out,
            r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="{width}"{dashes}/>"#,
            points.join(" ")
        );
        if !line.dashed {
            for point in &points {
                if let Some((x, y)) = point.split_once(',') {
                    let _ = writeln!(out, r#"<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>"#);
                }
            }
        }
    }
}

const LEGEND_WIDTH: f64 = 160.0;

/// Entries of the legend beside each other.
fn legend_columns(width: f64) -> usize {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a chart has few columns")]
    let columns = ((width - LEFT) / LEGEND_WIDTH) as usize;
    columns.max(1)
}

fn legend(out: &mut String, labels: &[&str], columns: usize) {
    for (i, label) in labels.iter().enumerate() {
        let x = LEFT + LEGEND_WIDTH * count(i % columns);
        let y = TOP + PANEL_HEIGHT + 66.0 + 18.0 * count(i / columns);
        let colour = colour(labels, label);
        let _ = writeln!(out, r#"<path d="M{x} {}h24" stroke="{colour}" stroke-width="2"/>"#, y - 4.0);
        text(out, x + 30.0, y, "start", 12, label);
    }
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, size: u32, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(
        out,
        r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" font-size="{size}">{text}</text>"#
    );
}

fn count(items: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a chart has few parts")]
    let count = items as f64;
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(values: Vec<f64>) -> Chart {
        let line = Line { label: "a<b".to_owned(), dashed: false, values };
        Chart {
            title: "t".to_owned(),
            subtitle: String::new(),
            vertical: "us".to_owned(),
            horizontal: "n".to_owned(),
            places: vec!["1".to_owned(), "2".to_owned()],
            panels: vec![Panel { title: "p".to_owned(), lines: vec![line], reference: None }],
            own_axes: false,
        }
    }

    #[test]
    fn values_lie_on_a_logarithmic_axis_of_whole_decades() {
        let decades = Decades::of(&chart(vec![0.5, 50.0]).panels);
        assert_eq!((decades.least, decades.most), (-1, 2));
        assert_eq!(decades.height(100.0), 0.0);
        assert_eq!(decades.height(0.1), PANEL_HEIGHT);
        assert!((decades.height(1.0) - PANEL_HEIGHT * 2.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn a_legend_of_many_lines_lies_within_the_chart() {
        let mut chart = chart(vec![1.0, 2.0]);
        let line = |label: usize| Line { label: format!("line {label}"), dashed: false, values: vec![1.0] };
        chart.panels[0].lines = (0..9).map(line).collect();
        let drawn = svg(&chart);
        let after = |text: &str, mark: &str| {
            let number = text.split_once(mark).and_then(|(_, rest)| rest.split(['"', ' ']).next());
            number.and_then(|number| number.parse::<f64>().ok()).expect("a number")
        };
        let (width, height) = (after(&drawn, "viewBox=\"0 0 "), after(&drawn, &format!("0 0 {WIDTH_MIN} ")));
        let labels: Vec<&str> = drawn.lines().filter(|line| line.contains(">line ")).collect();
        assert_eq!(labels.len(), 9);
        for label in labels {
            assert!(
                after(label, "x=\"") + LEGEND_WIDTH - 30.0 <= width && after(label, " y=\"") < height,
                "{label}"
            );
        }
    }

    #[test]
    fn text_is_escaped_and_nothing_is_drawn_outside() {
        let drawn = svg(&chart(vec![0.0, 50.0, f64::NAN]));
        assert!(drawn.contains("a&lt;b") && !drawn.contains("a<b"));
        assert!(!drawn.contains("NaN") && !drawn.contains("inf"));
        assert_eq!(drawn.matches("<circle").count(), 2);
    }
}
