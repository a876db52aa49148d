//! Envoy's everyday messages, made briefly.

use std::net::SocketAddr;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::{
    Address, AggregatedConfigSource, ApiVersion, ConfigSource, SocketAddress, TransportSocket,
    address::Address as Kind, config_source::ConfigSourceSpecifier, socket_address::PortSpecifier,
    transport_socket::ConfigType,
};
use envoy_types::pb::envoy::r#type::v3::FractionalPercent;
use envoy_types::pb::envoy::r#type::v3::fractional_percent::DenominatorType;
use envoy_types::pb::google::protobuf::{self, Any};
use prost::{Message, Name};
use starling_model::Percent;

/// A message in an envelope that names its type.
pub(super) fn any<M: Message + Name>(message: &M) -> Any {
    any_of(&M::type_url(), message)
}

/// A message in an envelope, with the type it has on the wire.
pub(super) fn any_of(type_url: &str, message: &impl Message) -> Any {
    Any { type_url: type_url.to_owned(), value: message.encode_to_vec() }
}

/// "Ask on the stream that you have."
///
/// Without a time limit on the first answer: a proxy that gives up waiting would open listeners without routes and
/// answer 404 or 503, where the last complete configuration still serves.
pub(super) fn ads() -> ConfigSource {
    ConfigSource {
        initial_fetch_timeout: Some(protobuf::Duration::default()),
        resource_api_version: ApiVersion::V3.into(),
        config_source_specifier: Some(ConfigSourceSpecifier::Ads(AggregatedConfigSource {})),
        ..Default::default()
    }
}

pub(super) fn duration(duration: Duration) -> protobuf::Duration {
    protobuf::Duration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(duration.subsec_nanos()).expect("invariant: nanoseconds stay below 10^9"),
    }
}

pub(super) fn number(value: u32) -> Option<protobuf::UInt32Value> {
    Some(protobuf::UInt32Value { value })
}

/// A share, in hundredths of a percent as here.
pub(super) fn fraction(share: Percent) -> FractionalPercent {
    FractionalPercent { numerator: share.hundredths().into(), denominator: DenominatorType::TenThousand.into() }
}

pub(super) fn flag(value: bool) -> Option<protobuf::BoolValue> {
    Some(protobuf::BoolValue { value })
}

pub(super) fn address(host: &str, port: u16) -> Address {
    let socket = SocketAddress {
        address: host.to_owned(),
        port_specifier: Some(PortSpecifier::PortValue(port.into())),
        ..Default::default()
    };
    Address { address: Some(Kind::SocketAddress(socket)) }
}

pub(super) fn socket(bind: SocketAddr) -> Address {
    address(&bind.ip().to_string(), bind.port())
}

pub(super) fn tls_socket<M: Message + Name>(context: &M) -> TransportSocket {
    TransportSocket {
        name: "envoy.transport_sockets.tls".to_owned(),
        config_type: Some(ConfigType::TypedConfig(any(context))),
    }
}
