package billing;

import com.rabbitmq.client.AMQP.BasicProperties;
import java.nio.ByteBuffer;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.UUID;

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

    /** Reads a CloudEvent from the properties of a delivery. */
    public static Message read(String topic, BasicProperties properties, byte[] payload) {
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
        if (properties.getMessageId() != null) {
            arrived.put("amqp.message_id", clean(properties.getMessageId()));
        }
        UUID id = null;
        String problem = "";
        try {
            String text = events.getOrDefault("id", clean(properties.getMessageId()));
            id = UUID.fromString(text);
            if (!id.toString().equalsIgnoreCase(text)) {
                throw new IllegalArgumentException(text + " is not a UUID");
            }
        } catch (IllegalArgumentException error) {
            id = null;
            problem = error.getMessage();
        }
        if (events.keySet().stream().anyMatch(CHUNK::contains)) {
            id = null;
            problem = "a chunk of a larger message";
        }
        String type = properties.getContentType();
        return new Message(
                clean(topic),
                payload,
                id,
                events.getOrDefault("type", clean(topic)),
                type == null ? "application/octet-stream" : clean(type),
                events.get("subject"),
                events.getOrDefault("source", "/unknown"),
                events.get("time"),
                id == null ? arrived : free, // What is not understood distinguishes malformed deliveries.
                problem);
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
