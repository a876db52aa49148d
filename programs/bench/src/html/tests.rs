use super::*;
use crate::cost::report::CostScenario;
use crate::cost::report::tests::sample;
use crate::fleet_report::tests::{example, example_with_everything};
use crate::html::cost::tests::{every_scenario, latency};
use crate::proxy::findings::tests::example as findings;

/// Every kind of report, and complaints.
fn everything() -> String {
    let (fleet, cost, small, findings) = (example_with_everything(), every_scenario(), sample(), findings());
    let reports = [
        Titled { title: "propagation", report: Report::Fleet(&fleet) },
        Titled { title: "a suite", report: Report::Cost(&cost) },
        Titled { title: "one <b> & another", report: Report::Cost(&small) },
        Titled { title: "proxy", report: Report::Proxies(&findings) },
    ];
    page("all of it", &reports, &["x.json: <no> JSON".to_owned()])
}

#[test]
fn the_page_needs_nothing_else() {
    let text = everything();
    for elsewhere in ["http:", "https:", "src=", "url(", "@import", "<script", "<link", "<img"] {
        assert!(!text.contains(elsewhere), "{elsewhere} in\n{text}");
    }
    for link in text.split("href=\"").skip(1) {
        let place = link.split('"').next().unwrap().strip_prefix('#').expect("a place on the page");
        assert_eq!(text.matches(&format!("id=\"{place}\"")).count(), 1, "{place}");
    }
}

#[test]
fn every_tag_that_is_opened_is_closed_in_order() {
    let text = everything();
    let mut open: Vec<&str> = Vec::new();
    let body = text.strip_prefix("<!DOCTYPE html>").unwrap();
    for tag in body.split('<').skip(1).map(|rest| rest.split_once('>').unwrap().0) {
        let name = tag.split_ascii_whitespace().next().unwrap();
        match (name.strip_prefix('/'), tag.ends_with('/')) {
            (Some(name), _) => assert_eq!(open.pop(), Some(name), "{tag}"),
            (None, true) => {}
            (None, false) => open.push(name),
        }
    }
    assert!(open.is_empty(), "{open:?}");
    for place in ["NaN", "inf"] {
        assert!(!text.contains(&format!("{place} ")) && !text.contains(&format!("\"{place}")), "{place} in\n{text}");
    }
}

#[test]
fn what_reports_name_is_text_and_no_markup() {
    let mut report = example();
    report.scenario = "a<b>&c".to_owned();
    let text = page_of_one(&report.scenario, Report::Fleet(&report));
    assert!(text.contains("<h1>starling bench a&lt;b&gt;&amp;c</h1>"), "{text}");
    let text = everything();
    assert!(text.contains("one &lt;b&gt; &amp; another") && text.contains("throughput: &lt;late&gt;"), "{text}");
    assert!(text.contains("<li>x.json: &lt;no&gt; JSON</li>"), "{text}");
}

#[test]
fn a_page_of_several_has_answers_then_contents_then_sections() {
    let text = everything();
    let places = [
        "<h2>In short</h2>",
        "<nav",
        "<h2>A fleet: propagation</h2>",
        "<h2>Latency that proxies add</h2>",
        "<h2>CPU time by rate</h2>",
        "<h2>Latency by load</h2>",
        "<h2>Memory of a proxy</h2>",
        "<h2>Ingress gateways under limits</h2>",
        "<h2>Traffic while the mesh changes</h2>",
        "<h2>Both data planes: proxy</h2>",
        "<h2>How this was measured</h2>",
    ];
    let places = places.map(|part| text.find(part).unwrap_or_else(|| panic!("{part} in\n{text}")));
    assert!(places.is_sorted(), "{places:?}");
    // Figures of both reports are under their scenario, each with its own settings.
    let latency = text.split("id=\"latency\"").nth(1).and_then(|rest| rest.split("</section>").next()).unwrap();
    assert_eq!((latency.matches("<h3>").count(), latency.matches("class=\"settings\"").count()), (2, 2), "{latency}");
}

#[test]
fn answers_stand_beside_what_was_published() {
    let text = everything();
    let answers = text.split("<h2>In short</h2>").nth(1).and_then(|rest| rest.split("</table>").next()).unwrap();
    for part in [
        "<th>native</th><th>Envoy</th>",
        "ms: p50 / p99 / all</a></td><td class=\"words\">propagation: 1,000 workloads on 50 nodes</td>\
         <td colspan=\"2\">89.9 / 139 / 2,400</td><td class=\"words published\">Consul 1.9: 361 / 32,052 / –; endpoint",
        "add, p50, ms</a></td><td class=\"words\">a suite: 16 conn., 1000/s</td>\
         <td>+0.500<br/><small>0.250 to 0.750</small></td><td>below noise<br/><small>of 0.125</small></td>\
         <td class=\"words published\">Istio 1.2: +3; 16 conn., 1,000/s<br/>OSM: +1; 1,000/s</td>",
        "<tr><td class=\"words\">one &lt;b&gt; &amp; another: 16 conn., 1000/s</td>",
        "Istio 1.2: 500 for one sidecar, at 1,000/s<br/>OSM: 1,060 for one sidecar",
        "<td class=\"words\">gateway: 0.1 cores, 100 MiB</td><td>500</td><td>–</td><td class=\"words published\">Consul, its default: 896</td>",
        "<td class=\"words\">100 changes/s</td><td>3<br/><small>7.50 ms</small></td>",
    ] {
        assert!(answers.contains(part), "{part} in\n{answers}");
    }
}

#[test]
fn a_rollout_stands_beside_one_of_its_size() {
    let line = |workloads: u32| {
        let report = crate::fleet_report::FleetReport { scenario: "rollout".to_owned(), workloads, ..example() };
        let text = page_of_one("rollout", Report::Fleet(&report));
        let answers = text.split("<h2>In short</h2>").nth(1).and_then(|rest| rest.split("</table>").next()).unwrap();
        answers.lines().find(|line| line.contains("A fleet from nothing")).unwrap().to_owned()
    };
    assert!(line(178_000).contains("Consul 1.9: nodes in 3,060 s, workloads in 2,760 s; 178,000 workloads"));
    let pods = line(200);
    assert!(
        pods.contains("OSM: 900 s for each round; sidecars into 100 pods/min") && !pods.contains("Consul"),
        "{pods}"
    );
    assert!(line(17_800).contains("<td class=\"words published\">–</td>"), "{}", line(17_800));
}

#[test]
fn points_that_a_short_name_does_not_tell_apart_are_each_an_answer() {
    let mut report = every_scenario();
    let again = |cell: &crate::cost::report::Cell, rate: f64| {
        let mut cell = cell.clone();
        cell.point.connections = 99;
        cell.rounds.iter_mut().for_each(|round| (round.rate, round.errors) = (rate, 77));
        cell
    };
    let of = |scenario| report.cells.iter().rfind(|cell| cell.scenario == scenario).unwrap();
    let more = [again(of(CostScenario::Ingress), 123.0), again(of(CostScenario::Churn), 123.0)];
    report.cells.extend(more);
    let text = page_of_one("more", Report::Cost(&report));
    let answers = text.split("<h2>In short</h2>").nth(1).and_then(|rest| rest.split("</table>").next()).unwrap();
    for part in [
        "100 conn., closed loop, 15000 requests, 0.1 cores, 100 MiB (gateway)</td><td>500</td>",
        "99 conn., closed loop, 15000 requests, 0.1 cores, 100 MiB (gateway)</td><td>123</td>",
        "16 conn., 1000/s, 100 changes/s</td><td>3<br/>",
        "99 conn., 1000/s, 100 changes/s</td><td>231<br/>",
    ] {
        assert!(answers.contains(part), "{part} in\n{answers}");
    }
}

#[test]
fn a_page_of_one_report_has_no_titles_of_reports() {
    let report = latency();
    let text = page_of_one("latency", Report::Cost(&report));
    let section = text.split("id=\"latency\"").nth(1).and_then(|rest| rest.split("</section>").next()).unwrap();
    assert!(!section.contains("<h3>") && text.contains("<h1>starling bench latency</h1>"), "{text}");
}

#[test]
fn nothing_makes_a_page_that_says_why() {
    let problems = ["a.json names no schema", "3 of 12 parts have not run"].map(str::to_owned);
    let text = page("starling bench", &[], &problems);
    assert!(text.contains("<li>a.json names no schema</li>") && !text.contains("In short"), "{text}");
    // The heading fits both.
    assert!(text.contains("<p class=\"missing\">What is missing, or went wrong:</p>"), "{text}");
}

/// A report whose every number is another: floats, and counts as large as `count` where they may be.
fn with_numbers<T: serde::Serialize + serde::de::DeserializeOwned>(report: &T, float: f64, count: u64) -> T {
    fn replace(value: &mut serde_json::Value, float: f64, count: u64) {
        match value {
            serde_json::Value::Number(number) if number.is_f64() => *value = serde_json::json!(float),
            serde_json::Value::Number(_) => *value = serde_json::json!(count.min(u64::from(u32::MAX))),
            serde_json::Value::Array(values) => values.iter_mut().for_each(|value| replace(value, float, count)),
            serde_json::Value::Object(fields) => {
                for (name, value) in fields {
                    match (name.as_str(), &*value) {
                        // Those of 64 bits.
                        ("count" | "errors" | "requests" | "affected" | "applied", serde_json::Value::Number(_)) => {
                            *value = count.into();
                        }
                        ("histogram_us", _) => *value = serde_json::json!([[0, count], [count, count], [count, 0]]),
                        _ => replace(value, float, count),
                    }
                }
            }
            serde_json::Value::Null | serde_json::Value::Bool(_) | serde_json::Value::String(_) => {}
        }
    }
    let mut json = serde_json::to_value(report).unwrap();
    replace(&mut json, float, count);
    serde_json::from_value(json).unwrap()
}

#[test]
fn whatever_numbers_a_report_has_there_is_a_page_of_it() {
    let floats = [0.0, -0.0, -1.0, 5e-324, f64::MIN_POSITIVE, 1e-9, f64::MAX, f64::MIN];
    for (float, count) in floats.into_iter().flat_map(|float| [0, 1, u64::MAX].map(|count| (float, count))) {
        let fleet = with_numbers(&example_with_everything(), float, count);
        let mut cost = with_numbers(&every_scenario(), float, count);
        // One that is as it was beside those that are not: the ends of axes are far apart.
        cost.cells.extend(every_scenario().cells);
        let mut mixed = fleet.clone();
        mixed.samples.extend(example().samples);
        mixed.changes.extend(example().changes);
        let proxies = with_numbers(&findings(), float, count);
        let reports = [Report::Fleet(&fleet), Report::Fleet(&mixed), Report::Cost(&cost), Report::Proxies(&proxies)];
        let text = page("nasty", &reports.map(|report| Titled { title: "nasty", report }), &[]);
        assert!(text.ends_with("</html>\n"));
        for svg in text.split("<svg").skip(1).map(|rest| rest.split("</svg>").next().unwrap()) {
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{float:e}, {count}: {svg}");
        }
    }
}
