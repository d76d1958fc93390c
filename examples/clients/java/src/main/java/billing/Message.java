package billing;

import com.rabbitmq.client.AMQP.BasicProperties;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.UUID;
import java.util.regex.Pattern;

import static java.nio.charset.StandardCharsets.UTF_8;

/** A message as it arrived. Without an id it is malformed, and {@code problem} says why. */
public record Message(
        String topic,
        byte[] payload,
        UUID id,
        String kind,
        String contentType,
        String key,
        String source,
        String madeAt,
        Map<String, String> headers,
        String problem) {

    /** Each of these attributes marks a part of a message. */
    private static final Set<String> CHUNK = Set.of("chunkindex", "chunkcount", "chunkbytes", "chunkfingerprint");

    /** Every other attribute is a header. */
    private static final Set<String> ATTRIBUTES =
            Set.of("specversion", "id", "source", "type", "time", "subject", "datacontenttype");

    private static final String HYPHENATED = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}";

    /** The spellings of an id. */
    private static final Pattern ID = Pattern.compile(
            "(urn:uuid:)?" + HYPHENATED + "|\\{" + HYPHENATED + "\\}|[0-9a-f]{32}", Pattern.CASE_INSENSITIVE);

    /** A message that no further attempt helps. */
    public static final class Reject extends Exception {
        public Reject(String reason) {
            super(reason);
        }
    }

    /** Replaces what PostgreSQL does not store in a text: NUL, and half a surrogate pair. */
    static String clean(Object text) {
        return new String(String.valueOf(text).replace('\0', '\uFFFD').getBytes(UTF_8), UTF_8);
    }

    /** Reads a CloudEvent from the properties of a delivery, or from a body that is the whole event. */
    public static Message read(String routingKey, BasicProperties properties, byte[] body) {
        Map<String, String> events = new TreeMap<>();
        Map<String, String> free = new TreeMap<>();
        Map<String, String> arrived = new TreeMap<>();
        if (properties.getHeaders() != null) {
            properties.getHeaders().forEach((name, value) -> {
                boolean isEvent = name.startsWith("cloudEvents_");
                (isEvent ? events : free).put(clean(isEvent ? name.substring(12) : name), clean(value));
                arrived.put(clean(name), clean(value));
            });
        }
        String topic = clean(routingKey);
        String messageId = or(properties.getMessageId(), "");
        String contentType = or(properties.getContentType(), "application/octet-stream");
        String kind = or(properties.getType(), topic);
        try {
            byte[] payload = body;
            String declared = contentType;
            if (CloudEvent.isEvent(contentType) && !events.containsKey("id")) {
                CloudEvent event = CloudEvent.open(body);
                payload = event.payload();
                declared = "application/octet-stream";
                events.putAll(event.attributes());
                event.headers().forEach(free::putIfAbsent);
            }
            if (events.keySet().stream().anyMatch(CHUNK::contains)) {
                throw new IllegalArgumentException("a chunk of a larger message");
            }
            if ("".equals(events.get("type")) || "".equals(events.get("source"))) {
                throw new IllegalArgumentException("its type or its source is empty");
            }
            // An attribute that is there counts, although it is empty.
            UUID id = readId(events.getOrDefault("id", messageId));
            String subject = events.get("subject");
            String type = events.getOrDefault("datacontenttype", declared);
            String source = events.getOrDefault("source", "/unknown");
            events.forEach((name, value) -> {
                if (!CHUNK.contains(name) && !ATTRIBUTES.contains(name)) {
                    free.putIfAbsent(name, value);
                }
            });
            return new Message(topic, payload, id, events.getOrDefault("type", kind), type,
                    "".equals(subject) ? null : subject, source, events.get("time"), free, "");
        } catch (IOException | IllegalArgumentException error) {
            if (properties.getMessageId() != null) {
                arrived.put("amqp.message_id", messageId);
            }
            // What is not understood distinguishes malformed deliveries.
            return new Message(topic, body, null, events.getOrDefault("type", kind), contentType,
                    events.get("subject"), events.getOrDefault("source", "/unknown"), events.get("time"), arrived,
                    clean(error.getMessage()));
        }
    }

    /** Returns a property, or something else if it is missing or empty. */
    private static String or(String property, String other) {
        return property == null || property.isEmpty() ? other : clean(property);
    }

    /** Reads an id in every spelling that the library reads, and in no other. */
    private static UUID readId(String text) {
        if (!ID.matcher(text).matches()) {
            String beginning = text.substring(0, Math.min(text.length(), 64));
            throw new IllegalArgumentException("\"" + beginning + "\" is not a UUID");
        }
        String digits = text.replaceAll("(?i)^urn:uuid:|[{}-]", "");
        long first = Long.parseUnsignedLong(digits.substring(0, 16), 16);
        return new UUID(first, Long.parseUnsignedLong(digits.substring(16), 16));
    }

    /** Returns the id of a business fact: the same time and parts always give the same one. */
    public static UUID derivedId(long milliseconds, String... parts) {
        try {
            MessageDigest hash = MessageDigest.getInstance("SHA-256");
            for (String part : parts) {
                byte[] bytes = part.getBytes(UTF_8);
                hash.update(ByteBuffer.allocate(8).putLong(bytes.length).array());
                hash.update(bytes);
            }
            ByteBuffer digest = ByteBuffer.wrap(hash.digest());
            long first = milliseconds << 16 | 0x7000 | digest.getShort(0) & 0x0fff;
            return new UUID(first, digest.getLong(2) & 0x3fffffffffffffffL | 0x8000000000000000L);
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException(error);
        }
    }
}
