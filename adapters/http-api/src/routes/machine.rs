//! What an agent says of its machine and of its own process, in Consul's forms.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::stream;
use serde_json::{Map, Value, json};

use super::agent::CONSUL_VERSION;
use crate::answer::{Answer, forms};
use crate::call::Call;
use crate::error::ApiError;
use crate::router::{Api, Outcome};
use starling_model::UnixSeconds;

/// Bytes in what the kernel calls a kB.
const KIB: u64 = 1024;

/// Between two lines of a stream of metrics.
const METRICS_EVERY: Duration = Duration::from_secs(10);

/// `GET /v1/agent/host`: what the kernel tells of the machine. What it does not tell is left out.
pub(super) async fn host(_: Arc<Api>, _: Call) -> Outcome {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let memory = read("/proc/meminfo");
    let memory = sizes(&memory);
    let of = |name: &str| memory.get(name).copied().unwrap_or_default();
    let (total, available) = (of("MemTotal"), of("MemAvailable"));
    let uptime = read("/proc/uptime");
    let uptime: u64 = uptime.split('.').next().and_then(|text| text.trim().parse().ok()).unwrap_or_default();
    let processors = read("/proc/cpuinfo").lines().filter(|line| line.starts_with("processor")).count();
    let collected = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Ok(Answer::json(json!({
        "Memory": {
            "total": total,
            "available": available,
            "used": total.saturating_sub(available),
            "free": of("MemFree"),
            "buffers": of("Buffers"),
            "cached": of("Cached"),
        },
        "CPU": (0..processors).map(|cpu| json!({"cpu": cpu})).collect::<Vec<_>>(),
        "Host": {
            "hostname": host_name(),
            "uptime": uptime,
            "os": std::env::consts::OS,
            "kernelArch": std::env::consts::ARCH,
            "kernelVersion": read("/proc/sys/kernel/osrelease").trim(),
        },
        "Disk": {},
        "CollectionTime": u64::try_from(collected.as_nanos()).unwrap_or(u64::MAX),
        "Errors": null,
    })))
}

/// The name of the machine, as its kernel has it.
fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// Lines `NAME: NUMBER kB`, in bytes.
fn sizes(text: &str) -> BTreeMap<&str, u64> {
    let size = |line: &'_ str| {
        let (name, rest) = line.split_once(':')?;
        let number: u64 = rest.split_whitespace().next()?.parse().ok()?;
        Some((name.len(), number * KIB))
    };
    text.lines().filter_map(|line| size(line).map(|(end, bytes)| (&line[..end], bytes))).collect()
}

pub(super) async fn version(api: Arc<Api>, _: Call) -> Outcome {
    let own = api.catalog.authority().version;
    Ok(Answer::json(json!({"SHA": own, "BuildDate": "", "HumanVersion": CONSUL_VERSION, "FIPS": "", "Starling": own})))
}

pub(super) async fn metrics(api: Arc<Api>, call: Call) -> Outcome {
    let text = api.catalog.metrics_text();
    match call.query.text("format") {
        Some("prometheus") => Ok(Answer::metrics(text)),
        Some(other) => Err(ApiError::bad_request(format!("format: {other:?} is not \"prometheus\", the only one"))),
        None => Ok(Answer::json(in_consuls_form(&text))),
    }
}

/// For as long as somebody listens. Every 10 seconds, as Consul's agents do, by whose interval theirs are summed up.
pub(super) async fn metrics_stream(api: Arc<Api>, call: Call) -> Outcome {
    let begun = (tokio::time::interval(METRICS_EVERY), api, call);
    let lines = stream::unfold(begun, |(mut interval, api, mut call)| async move {
        // It ends for a caller who has lost the right.
        call.wait_for(&api, interval.tick()).await.ok()??;
        let line = format!("{}\n", in_consuls_form(&api.catalog.metrics_text()));
        Some((Ok::<_, Infallible>(Bytes::from(line)), (interval, api, call)))
    });
    Ok(Answer::stream(axum::body::Body::from_stream(lines)))
}

/// Metrics in the OpenMetrics text form, as Consul's agents tell theirs. Buckets of histograms are left out.
fn in_consuls_form(text: &str) -> Value {
    let (mut gauges, mut counters, mut samples) = (Vec::new(), Vec::new(), BTreeMap::<_, (f64, f64)>::new());
    let mut kinds = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            kinds.insert(name, kind);
        }
        let Some((name, labels, value)) = series(line) else { continue };
        let part = |suffix: &str, kind: &str| name.strip_suffix(suffix).filter(|name| kinds.get(name) == Some(&kind));
        if kinds.get(name) == Some(&"gauge") {
            gauges.push(json!({"Name": name, "Value": value, "Labels": labels}));
        } else if let Some(name) = part("_total", "counter") {
            counters.push(whole(name, (value, value), &labels));
        } else if let Some(name) = part("_sum", "histogram") {
            samples.entry((name, labels.to_string())).or_default().1 = value;
        } else if let Some(name) = part("_count", "histogram") {
            samples.entry((name, labels.to_string())).or_default().0 = value;
        }
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = sizes(&status).get("VmRSS").copied().unwrap_or_default();
    gauges.push(json!({
        // What Consul's dashboards look at; here it is the memory that the process has.
        "Name": format!("consul.{}.runtime.alloc_bytes", host_name()),
        "Value": resident,
        "Labels": {},
    }));
    let labels = |text: &str| serde_json::from_str(text).unwrap_or(Value::Null);
    let samples: Vec<_> = samples.iter().map(|((name, of), counted)| whole(name, *counted, &labels(of))).collect();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    json!({
        "Timestamp": forms::time(UnixSeconds(now.as_secs())),
        "Gauges": gauges,
        "Points": [],
        "Counters": counters,
        "Samples": samples,
    })
}

/// A sum over the life of the process: who wants a rate asks twice.
fn whole(name: &str, (count, sum): (f64, f64), labels: &Value) -> Value {
    // Consul's client reads a whole number there.
    let whole: u64 = format!("{count:.0}").parse().unwrap_or_default();
    let mean = if count > 0.0 { sum / count } else { 0.0 };
    json!({"Name": name, "Count": whole, "Sum": sum, "Mean": mean, "Rate": 0, "Min": 0, "Max": 0, "Stddev": 0, "Labels": labels})
}

/// `NAME{LABEL="VALUE",…} NUMBER`.
fn series(line: &str) -> Option<(&str, Value, f64)> {
    if line.starts_with('#') {
        return None;
    }
    let (series, value) = line.rsplit_once(' ')?;
    let value: f64 = value.parse().ok().filter(|value: &f64| value.is_finite())?;
    let Some((name, rest)) = series.split_once('{') else { return Some((series, json!({}), value)) };
    let mut labels = Map::new();
    for pair in rest.trim_end_matches('}').split("\",") {
        if let Some((label, text)) = pair.split_once("=\"") {
            labels.insert(label.to_owned(), text.trim_end_matches('"').into());
        }
    }
    Some((name, Value::Object(labels), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_told_in_consuls_form() {
        let text = "# TYPE a gauge\na{of=\"x\",by=\"y\"} 1.5\n# TYPE b counter\nb_total 3\n# TYPE c histogram\nc_sum 4.0\n\
                    c_count 2\nc_bucket{le=\"1.0\"} 1\n# EOF\n";
        let form = in_consuls_form(text);
        assert_eq!(form["Gauges"][0], json!({"Name": "a", "Value": 1.5, "Labels": {"of": "x", "by": "y"}}));
        assert!(form["Gauges"][1]["Name"].as_str().is_some_and(|name| name.ends_with(".runtime.alloc_bytes")));
        assert_eq!((&form["Counters"][0]["Name"], &form["Counters"][0]["Count"]), (&json!("b"), &json!(3)));
        let sample = &form["Samples"][0];
        assert_eq!((&sample["Name"], &sample["Count"], &sample["Mean"]), (&json!("c"), &json!(2), &json!(2.0)));
        assert_eq!(form["Samples"].as_array().map(Vec::len), Some(1));
    }

    #[test]
    fn what_the_kernel_tells_in_kilobytes_is_told_in_bytes() {
        let sizes = sizes("MemTotal:       2 kB\nnonsense\nMemFree: x kB\n");
        assert_eq!(sizes, BTreeMap::from([("MemTotal", 2048)]));
    }
}
